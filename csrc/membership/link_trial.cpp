#include "membership/link_trial.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>

#include "core/strings.h"

namespace rueda {

namespace {

constexpr Tag trial_tag = tag_limit - 1;
constexpr int small_runs = 30;
// The first of them opens the window of the connection.
constexpr int large_runs = 6;
constexpr std::size_t large_bytes = 128 << 10;

std::vector<int> first_ranks(const std::vector<int>& host_of) {
  std::vector<int> hosts;
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
    if (std::find(hosts.begin(), hosts.end(), host_of[rank]) != hosts.end()) continue;
    hosts.push_back(host_of[rank]);
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

class Trial {
 public:
  Trial(Transport& transport, const std::vector<int>& ranks, Time deadline)
      : transport_(transport), deadline_(deadline), incoming_(large_bytes), outgoing_(large_bytes) {
    const std::size_t own = static_cast<std::size_t>(
        std::find(ranks.begin(), ranks.end(), transport.rank()) - ranks.begin());
    next_ = ranks[(own + 1) % ranks.size()];
    previous_ = ranks[(own + ranks.size() - 1) % ranks.size()];
  }

  // ns until a message has gone to the next host and one has come from the previous one: the lower
  // quartile, since disturbances only add.
  Expected<double> time(std::size_t bytes, int runs) {
    std::vector<double> times;
    for (int run = 0; run < runs; ++run) {
      const Time begin = Clock::now();
      if (Status status = exchange(bytes); !status.ok()) return status;
      times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
    }
    const auto quartile = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
    std::nth_element(times.begin(), quartile, times.end());
    return *quartile;
  }

 private:
  Status exchange(std::size_t bytes) {
    const MutableBytes target(incoming_.data(), bytes);
    const ConstBytes source(outgoing_.data(), bytes);
    const Ticket received = transport_.recv(previous_, trial_tag, {&target, 1});
    const Ticket sent = transport_.send(next_, trial_tag, {&source, 1});
    while (!received->done || !sent->done) {
      if (transport_.progress()) continue;
      if (Clock::now() >= deadline_) {
        // Nothing may touch the buffers once they are gone.
        Status late(ErrorCode::initialization,
                    str("rank ", previous_,
                        " of another host has sent nothing for a trial of the "
                        "link, or rank ",
                        next_, " has received nothing"),
                    previous_);
        transport_.abort(late);
        return late;
      }
      sched_yield();
    }
    return received->status.ok() ? sent->status : received->status;
  }

  Transport& transport_;
  const Time deadline_;
  std::vector<std::byte> incoming_;
  std::vector<std::byte> outgoing_;
  int next_ = 0;
  int previous_ = 0;
};

Expected<std::string> try_links(Transport& transport, const std::vector<int>& ranks,
                                Time deadline) {
  if (std::find(ranks.begin(), ranks.end(), transport.rank()) == ranks.end()) return std::string();
  Trial trial(transport, ranks, deadline);
  const auto warm = trial.time(large_bytes, 1);
  if (!warm) return warm.status();
  const auto small = trial.time(1, small_runs);
  if (!small) return small.status();
  const auto large = trial.time(large_bytes, large_runs);
  if (!large) return large.status();
  const double per_byte = std::max(0.0, (*large - *small) / static_cast<double>(large_bytes));
  return str(*small, " ", per_byte);
}

std::optional<LinkCosts> costs_of(const std::string& text) {
  LinkCosts costs;
  costs.is_measured = true;
  const char* next = text.data();
  const char* end = text.data() + text.size();
  for (double* figure : std::array{&costs.latency, &costs.per_byte}) {
    const auto [stop, error] = std::from_chars(next, end, *figure);
    if (error != std::errc() || !(*figure >= 0)) return std::nullopt;
    next = stop == end ? end : stop + 1;
  }
  return costs;
}

}  // namespace

Expected<LinkCosts> measure_links(Bootstrap& world, Transport& transport,
                                  const std::vector<int>& host_of, Time deadline) {
  const std::vector<int> ranks = first_ranks(host_of);
  if (ranks.size() < 2) return LinkCosts{};
  const auto all = world.allgather("links", try_links(transport, ranks, deadline), deadline);
  if (!all) return all.status();
  LinkCosts slowest{0, 0, true};
  for (const int rank : ranks) {
    const auto costs = costs_of(all.value()[static_cast<std::size_t>(rank)]);
    if (!costs) {
      return Status(ErrorCode::internal, str("rank ", rank, " has sent invalid costs"), rank);
    }
    slowest.latency = std::max(slowest.latency, costs->latency);
    slowest.per_byte = std::max(slowest.per_byte, costs->per_byte);
  }
  return slowest;
}

}  // namespace rueda
