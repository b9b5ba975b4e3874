#include "simulation.h"

#include <malloc.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "control_plane.h"
#include "data_plane.h"
#include "timeline.h"
#include "workload.h"

namespace rueda::simulate {

namespace {

// What the engine would choose by these links, or has been told to.
AlgorithmTable algorithms_of(const Settings& settings) {
  const AlgorithmTable measured =
      algorithms_across(settings.costs.link, settings.hosts, settings.ranks_per_host > 1);
  // It has been checked.
  return AlgorithmTable::parse(settings.engine.algorithm, measured, Extent::several_hosts).value();
}

// Ranks follow one another, host by host.
SetHosts hosts_of(const Settings& settings) {
  std::vector<std::vector<int>> members(static_cast<std::size_t>(settings.hosts));
  std::vector<int> ranks;
  for (int rank = 0; rank < settings.ranks(); ++rank) {
    ranks.push_back(rank);
    members[static_cast<std::size_t>(rank / settings.ranks_per_host)].push_back(rank);
  }
  return {std::move(members),
          0,
          0,
          ranks,
          algorithms_of(settings),
          alltoall_across(settings.costs.link, settings.ranks_per_host),
          settings.costs.link};
}

std::int64_t allocated() {
  return static_cast<std::int64_t>(mallinfo2().uordblks);
}

class Simulation {
 public:
  explicit Simulation(const Settings& settings)
      : settings_(settings),
        hosts_(hosts_of(settings)),
        timeline_(settings.ranks()),
        links_(settings),
        data_(settings, hosts_, timeline_, links_,
              [this](int rank, const Batch& batch) { finish(rank, batch); }),
        allocated_before_(allocated()),
        control_(settings, hosts_, timeline_, links_,
                 {[this](int rank, const Batch& batch) { data_.start(rank, batch); },
                  [this](int rank, const Batch& batch) { finish(rank, batch); },
                  [this](int rank) { return data_.running(rank); }}),
        ready_(ready_times(settings.tensors, settings.backward)),
        starts_(static_cast<std::size_t>(settings.ranks())),
        open_(static_cast<std::size_t>(settings.ranks())),
        random_(settings.seed) {}

  Result run() {
    Result result;
    for (int step = 0; step < settings_.steps; ++step) result.steps.push_back(run_step());
    result.buffer_bytes = data_.peak_buffer_bytes();
    result.control_bytes =
        std::max<std::int64_t>(0, allocated() - allocated_before_) / settings_.ranks();
    result.events = events_;
    return result;
  }

 private:
  // Between steps all ranks wait for each other.
  StepResult run_step() {
    StepResult result;
    const std::vector<Traffic> before = traffic();
    const std::vector<std::int64_t> sent_before = link_bytes();
    const std::size_t batches = control_.batches();
    const std::size_t lists = control_.negotiated();
    const std::size_t rounds = control_.replayed();
    const Time begin = latest();
    last_finished_ = begin;
    for (int rank = 0; rank < settings_.ranks(); ++rank) begin_step(rank, begin);
    while (!timeline_.empty()) {
      data_.fetch_ahead();
      handle(timeline_.take());
    }
    result.seconds = to_seconds(last_finished_ - begin);
    result.batches = control_.batches() - batches;
    result.lists = control_.negotiated() - lists;
    result.rounds = control_.replayed() - rounds;
    count(result, before, sent_before);
    return result;
  }

  void begin_step(int rank, Time begin) {
    const auto index = static_cast<std::size_t>(rank);
    // Evenly distributed, the same with every standard library.
    const double drawn = static_cast<double>(random_() >> 11U) * 0x1p-53;
    starts_[index] = begin + nanoseconds((settings_.forward + settings_.jitter * drawn) * 1e9);
    open_[index] = settings_.tensors.size();
    submit_later(rank, 0);
  }

  void submit_later(int rank, std::size_t tensor) {
    if (tensor == ready_.size()) return;
    const Time at = starts_[static_cast<std::size_t>(rank)] + nanoseconds(ready_[tensor]);
    timeline_.add(at, {EventKind::submit, static_cast<std::uint32_t>(rank), rank, tensor});
  }

  void handle(const Event& event) {
    ++events_;
    switch (event.kind) {
      case EventKind::submit: return submit(static_cast<int>(event.rank), event.key);
      case EventKind::data:
      case EventKind::direct:
      case EventKind::wake: return data_.receive(event);
      case EventKind::control:
      case EventKind::report:
      case EventKind::execute: return control_.handle(event);
    }
  }

  // What is ready at one time is handed in together.
  void submit(int rank, std::size_t first) {
    std::size_t last = first;
    while (last < ready_.size() && ready_[last] <= ready_[first]) ++last;
    submit_later(rank, last);
    control_.submit(rank, first, last);
  }

  void finish(int rank, const Batch& batch) {
    std::size_t& open = open_[static_cast<std::size_t>(rank)];
    open -= batch.tensors.size();
    if (open == 0) last_finished_ = std::max(last_finished_, timeline_.clock(rank));
    control_.finished(rank);
  }

  [[nodiscard]] Time latest() const {
    Time latest = timeline_.now();
    for (int rank = 0; rank < settings_.ranks(); ++rank) {
      latest = std::max(latest, timeline_.clock(rank));
    }
    return latest;
  }
  [[nodiscard]] std::vector<Traffic> traffic() const {
    std::vector<Traffic> all;
    for (int rank = 0; rank < settings_.ranks(); ++rank) all.push_back(links_.traffic(rank));
    return all;
  }
  [[nodiscard]] std::vector<std::int64_t> link_bytes() const {
    std::vector<std::int64_t> all;
    for (int host = 0; host < settings_.hosts; ++host) all.push_back(links_.bytes(host));
    return all;
  }

  void count(StepResult& result, const std::vector<Traffic>& before,
             const std::vector<std::int64_t>& sent_before) const {
    for (int rank = 0; rank < settings_.ranks(); ++rank) {
      result.traffic.push_back(links_.traffic(rank) - before[static_cast<std::size_t>(rank)]);
    }
    const auto messages = static_cast<double>(result.traffic.front().control_messages());
    result.root_busy = messages * settings_.costs.control_message * 1e-9;
    for (int host = 0; host < settings_.hosts; ++host) {
      const std::int64_t sent = links_.bytes(host) - sent_before[static_cast<std::size_t>(host)];
      result.link_bytes = std::max(result.link_bytes, sent);
    }
  }

  const Settings& settings_;
  const SetHosts hosts_;
  Timeline timeline_;
  Links links_;
  DataPlane data_;
  const std::int64_t allocated_before_;
  ControlPlane control_;
  const std::vector<double> ready_;  // by tensor
  std::vector<Time> starts_;         // of the step's backward pass, by rank
  std::vector<std::size_t> open_;    // tensors of the step, by rank
  std::mt19937_64 random_;
  Time last_finished_{};
  std::uint64_t events_ = 0;
};

}  // namespace

Result simulate(const Settings& settings) {
  return Simulation(settings).run();
}

}  // namespace rueda::simulate
