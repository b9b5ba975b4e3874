#include "data_plane.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "backend/sequence.h"
#include "plan/hierarchy_plan.h"

namespace rueda::simulate {

namespace {

constexpr std::int64_t element_bytes = 4;  // float32
constexpr std::size_t cache_line = 64;

// What a message is for: which batch, which part of it, and which step of that.
enum class Step : std::uint64_t { links, before, after };
constexpr int part_bits = 24;
constexpr int step_bits = 2;

std::uint64_t key_of(const Batch& batch, std::int64_t part, Step step) {
  return (batch.number << part_bits | static_cast<std::uint64_t>(part)) << step_bits |
         static_cast<std::uint64_t>(step);
}
SimulatedOperation* operation_at(std::uint64_t address) {
  return std::bit_cast<SimulatedOperation*>(static_cast<std::uintptr_t>(address));
}
std::uint64_t batch_of(std::uint64_t key) {
  return key >> (part_bits + step_bits);
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

std::int64_t Batch::bytes() const {
  return elements * element_bytes;
}

DataPlane::DataPlane(const Settings& settings, const SetHosts& hosts, Timeline& timeline,
                     Links& links, Finished finished)
    : settings_(settings),
      hosts_(hosts),
      all_(all_ranks(settings.ranks())),
      chunk_bytes_(std::min(settings.engine.ring_chunk, hosts.chunk_bytes())),
      fabric_{settings.costs, timeline, links,
              std::vector<Mailbox<SimulatedOperation>>(static_cast<std::size_t>(settings.ranks()))},
      finished_(std::move(finished)),
      stages_(settings),
      ranks_(static_cast<std::size_t>(settings.ranks())) {}

void DataPlane::start(int rank, const Batch& batch) {
  Rank& own = at(rank);
  if (batch.is_packed()) {
    fabric_.timeline.spend(rank, settings_.costs.copy * static_cast<double>(batch.bytes()));
  }
  const std::int64_t buffers = buffer_bytes(batch);
  own.buffer_bytes += buffers;
  peak_buffer_bytes_ = std::max(peak_buffer_bytes_, own.buffer_bytes);
  own.running.push_back({&batch, operation(rank, batch), buffers});
  advance(rank, own.running.size() - 1);
}

void DataPlane::receive(const Event& event) {
  const auto rank = static_cast<int>(event.rank);
  auto& mailbox = fabric_.mailboxes[event.rank];
  SimulatedOperation* const operation =
      event.kind == EventKind::direct ? operation_at(event.key) : mailbox.find(event.key);
  if (operation == nullptr) {
    if (event.kind == EventKind::data) mailbox.put(event.key, event.from);
    return;
  }
  if (event.kind != EventKind::wake) operation->deliver(event.from);
  operation->advance();
  // Nothing else of this rank can go on unless this is over.
  if (!operation->done()) return;
  const std::uint64_t batch = batch_of(operation->key());
  const auto& running = at(rank).running;
  for (std::size_t index = 0; index < running.size(); ++index) {
    if (running[index].batch->number == batch) return advance(rank, index);
  }
}

void DataPlane::fetch_ahead() const {
  constexpr std::size_t distance = 10;
  const Event* const event = fabric_.timeline.after(distance);
  if (event == nullptr || event->kind != EventKind::direct) return;
  const auto* const operation = std::bit_cast<const std::byte*>(event->key);
  for (std::size_t line = 0; line < sizeof(SimulatedRing); line += cache_line) {
    __builtin_prefetch(operation + line);
  }
}

void DataPlane::advance(int rank, std::size_t index) {
  Rank& own = at(rank);
  Operation& operation = *own.running[index].operation;
  while (operation.advance()) {
  }
  if (!operation.done()) return;
  const Batch& batch = *own.running[index].batch;
  own.buffer_bytes -= own.running[index].buffer_bytes;
  own.running.erase(own.running.begin() + static_cast<std::ptrdiff_t>(index));
  if (batch.is_packed()) {
    fabric_.timeline.spend(rank, settings_.costs.copy * static_cast<double>(batch.bytes()));
  }
  finished_(rank, batch);
}

// As HierarchicalBackend::allreduce does.
std::unique_ptr<Operation> DataPlane::operation(int rank, const Batch& batch) {
  const Algorithm algorithm = hosts_.algorithms().choose(batch.bytes());
  if (algorithm != Algorithm::ring) return hierarchy(rank, batch, algorithm);
  return ring(rank, key_of(batch, 0, Step::links), rank, all_, batch.elements);
}

std::unique_ptr<Operation> DataPlane::ring(int rank, std::uint64_t key, int place,
                                           const std::vector<int>& members, std::int64_t elements) {
  auto plan = ring_plans_.find({members.size(), elements});
  if (plan == ring_plans_.end()) {
    RingPlan first = RingPlan::allreduce(0, static_cast<int>(members.size()), elements,
                                         chunk_bytes_ / element_bytes);
    plan = ring_plans_.emplace(std::pair(members.size(), elements), std::move(first)).first;
  }
  return std::make_unique<SimulatedRing>(fabric_, rank, key, plan->second.of_rank(place), members,
                                         element_bytes);
}

// As hierarchical_allreduce() does.
std::unique_ptr<Operation> DataPlane::hierarchy(int rank, const Batch& batch, Algorithm algorithm) {
  const HierarchyPlan plan(hosts_, algorithm, batch.elements, element_bytes, chunk_bytes_);
  const int index = hosts_.index_of(rank);
  const int host = hosts_.host_of(rank);
  const auto members = static_cast<std::size_t>(hosts_.size(host));
  const auto steps = [=, this, &batch](std::int64_t part) -> std::vector<Sequence::Step> {
    const auto stage = [=, this, &batch](Step step) -> std::unique_ptr<Operation> {
      if (members == 1) return nullptr;
      return std::make_unique<SimulatedStage>(fabric_, rank, key_of(batch, part, step), stages_,
                                              members, plan.part(part).count * element_bytes);
    };
    const auto cross = [=, this, &batch]() -> std::unique_ptr<Operation> {
      if (index >= plan.slices()) return nullptr;
      const std::vector<int>& across = hosts_.across(index);
      const std::int64_t elements = plan.slice(part, index).count;
      const std::uint64_t key = key_of(batch, part, Step::links);
      if (plan.algorithm() == Algorithm::hierarchical) {
        return ring(rank, key, host, across, elements);
      }
      if (plan.algorithm() == Algorithm::tree) {
        return std::make_unique<SimulatedTree>(fabric_, rank, key, static_cast<int>(part % 2), host,
                                               across, elements * element_bytes,
                                               plan.chunk_bytes() / element_bytes * element_bytes);
      }
      const auto plan_of = plan.algorithm() == Algorithm::halving ? halving_plan : doubling_plan;
      return std::make_unique<SimulatedRecursion>(
          fabric_, rank, key, plan_of(host, static_cast<int>(across.size()), elements), across,
          element_bytes);
    };
    return {[=] { return stage(Step::before); }, cross, [=] { return stage(Step::after); }};
  };
  return std::make_unique<Pipeline>(plan.parts(), parts_under_way, steps);
}

// The fusion buffer, and what rings receive before it is reduced.
std::int64_t DataPlane::buffer_bytes(const Batch& batch) const {
  const std::int64_t packed = batch.is_packed() ? batch.bytes() : 0;
  const Algorithm algorithm = hosts_.algorithms().choose(batch.bytes());
  if (algorithm == Algorithm::doubling) return packed + batch.bytes();
  if (algorithm == Algorithm::halving) {
    const bool is_power = std::has_single_bit(static_cast<unsigned>(hosts_.hosts()));
    return packed + (is_power ? (batch.bytes() + 1) / 2 : batch.bytes());
  }
  if (algorithm == Algorithm::tree) {
    const HierarchyPlan plan(hosts_, algorithm, batch.elements, element_bytes, chunk_bytes_);
    const std::int64_t trees = std::min<std::int64_t>(plan.parts(), parts_under_way);
    return packed + trees * 2 * TreeProgress::window * plan.chunk_bytes();
  }
  std::int64_t rings = 1;
  std::int64_t segment = batch.bytes() / settings_.ranks();
  if (algorithm == Algorithm::hierarchical) {
    const HierarchyPlan plan(hosts_, algorithm, batch.elements, element_bytes, chunk_bytes_);
    rings = std::min<std::int64_t>(plan.parts(), parts_under_way);
    segment = plan.slice(0, 0).count * element_bytes / hosts_.hosts();
  }
  return packed + rings * RingProgress::window * std::min(segment + element_bytes, chunk_bytes_);
}

}  // namespace rueda::simulate
