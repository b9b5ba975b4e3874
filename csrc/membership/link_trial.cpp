#include "membership/link_trial.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr Tag trial_tag{.group = trial_group};
constexpr int small_runs = 30;
constexpr int large_runs = 4;
constexpr std::size_t burst = 32;  // small messages in flight
constexpr int burst_runs = 8;
constexpr std::size_t copied_bytes = 4 << 20;  // more than one processor's caches hold
constexpr int copies = 3;
constexpr Duration spinning = std::chrono::milliseconds(5);
constexpr std::size_t large_bytes = 2 * LinkCosts::large_chunk;
// Large chunks mean fewer messages, but small ones overlap better.
constexpr double worthwhile_gain = 1.1;

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

// While a peer keeps this rank waiting: other ranks of the host may need the processor. After what
// a link takes to answer it sleeps, for a small part of the time that it measures.
void pause(Duration waited) {
  if (waited < spinning) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::min<Duration>(waited / 32, std::chrono::milliseconds(1)));
  }
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

  // ns to send `bytes` to the next host and receive as many from the previous one, in messages of
  // `chunk` bytes: the lower quartile, since disturbances only add time.
  Expected<double> time(std::size_t bytes, std::size_t chunk, int runs) {
    std::vector<double> times;
    for (int run = 0; run < runs; ++run) {
      const Time begin = Clock::now();
      if (Status status = exchange(bytes, chunk); !status.ok()) return status;
      times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
    }
    const auto quartile = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
    std::nth_element(times.begin(), quartile, times.end());
    return *quartile;
  }

 private:
  Status exchange(std::size_t bytes, std::size_t chunk) {
    std::vector<Ticket> tickets;
    for (std::size_t at = 0; at < bytes; at += chunk) {
      const std::size_t length = std::min(chunk, bytes - at);
      const MutableBytes target(incoming_.data() + at, length);
      const ConstBytes source(outgoing_.data() + at, length);
      tickets.push_back(transport_.recv(previous_, trial_tag, {&target, 1}));
      tickets.push_back(transport_.send(next_, trial_tag, {&source, 1}));
    }
    for (const Ticket& ticket : tickets) {
      if (Status status = finish(*ticket); !status.ok()) return status;
    }
    return {};
  }

  Status finish(const Transfer& transfer) {
    Time moved = Clock::now();
    while (!transfer.done) {
      const bool moves = transport_.progress();
      const Time now = Clock::now();
      if (moves) {
        moved = now;
        continue;
      }
      if (now >= deadline_) {
        const Status late(ErrorCode::initialization,
                          str("rank ", transfer.peer,
                              " on another host did not answer while the link to it was measured"),
                          transfer.peer);
        transport_.abort(late);  // nothing may touch the buffers once they are gone
        return late;
      }
      pause(now - moved);
    }
    return transfer.status;
  }

  Transport& transport_;
  const Time deadline_;
  std::vector<std::byte> incoming_;
  std::vector<std::byte> outgoing_;
  int next_ = 0;
  int previous_ = 0;
};

// ns per byte copied in memory.
double cost_of_copying() {
  const std::vector<std::byte> source(copied_bytes);
  std::vector<std::byte> target(copied_bytes);
  double least = std::numeric_limits<double>::max();
  for (int run = 0; run < copies; ++run) {
    const Time begin = Clock::now();
    std::memcpy(target.data(), source.data(), copied_bytes);
    least = std::min(least, std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  return least / static_cast<double>(copied_bytes);
}

Expected<std::string> try_links(Transport& transport, const std::vector<int>& ranks,
                                Time deadline) {
  if (std::find(ranks.begin(), ranks.end(), transport.rank()) == ranks.end()) return std::string();
  Trial trial(transport, ranks, deadline);
  constexpr std::size_t small_chunk = LinkCosts::small_chunk;
  constexpr std::size_t large_chunk = LinkCosts::large_chunk;
  // The first transfer opens the connection's window.
  for (const std::size_t chunk : {large_chunk, small_chunk}) {
    if (auto warm = trial.time(large_bytes, chunk, 1); !warm) return warm.status();
  }
  const auto one = trial.time(1, 1, small_runs);
  if (!one) return one.status();
  const auto many = trial.time(burst, 1, burst_runs);
  if (!many) return many.status();
  const auto small = trial.time(large_bytes, small_chunk, large_runs);
  if (!small) return small.status();
  const auto large = trial.time(large_bytes, large_chunk, large_runs);
  if (!large) return large.status();
  const double best = std::min(*small, *large);
  const double per_byte = std::max(0.0, (best - *one) / static_cast<double>(large_bytes));
  // If there is no difference, fewer messages cost less.
  const bool takes_small = *small * worthwhile_gain < *large;
  const double per_message = std::max(0.0, (*many - *one) / (burst - 1));
  return str(*one, " ", per_byte, " ", takes_small ? small_chunk : large_chunk, " ", per_message,
             " ", cost_of_copying());
}

std::optional<LinkCosts> costs_of(const std::string& text) {
  LinkCosts costs;
  costs.is_measured = true;
  const char* next = text.data();
  const char* end = text.data() + text.size();
  double chunk = 0;
  for (double* figure : std::array{&costs.latency, &costs.per_byte, &chunk, &costs.per_message,
                                   &costs.per_copied_byte}) {
    const auto [stop, error] = std::from_chars(next, end, *figure);
    if (error != std::errc() || !(*figure >= 0)) return std::nullopt;
    next = stop == end ? end : stop + 1;
  }
  if (chunk < 1 || chunk > LinkCosts::large_chunk) return std::nullopt;
  costs.chunk = static_cast<std::int64_t>(chunk);
  return costs;
}

}  // namespace

Expected<LinkCosts> measure_links(Bootstrap& world, const std::string& name, Transport& transport,
                                  const std::vector<int>& host_of, Time end, Time deadline) {
  const std::vector<int> ranks = first_ranks(host_of);
  if (ranks.size() < 2) return LinkCosts{};
  const auto all = world.allgather(name, try_links(transport, ranks, end), deadline);
  if (!all) return all.status();
  LinkCosts slowest{
      .latency = 0, .per_byte = 0, .is_measured = true, .per_message = 0, .per_copied_byte = 0};
  for (const int rank : ranks) {
    const auto costs = costs_of(all.value()[static_cast<std::size_t>(rank)]);
    if (!costs) {
      return Status(ErrorCode::internal, str("rank ", rank, " has sent invalid costs"), rank);
    }
    slowest.latency = std::max(slowest.latency, costs->latency);
    slowest.per_byte = std::max(slowest.per_byte, costs->per_byte);
    slowest.chunk = std::min(slowest.chunk, costs->chunk);
    slowest.per_message = std::max(slowest.per_message, costs->per_message);
    slowest.per_copied_byte = std::max(slowest.per_copied_byte, costs->per_copied_byte);
  }
  log(LogLevel::debug, "the slowest link between hosts, as of ", transport.name(),
      ": a message takes ", slowest.latency, " ns, ", slowest.per_byte, " for each byte, ",
      slowest.per_message, " for each further message; a copy ", slowest.per_copied_byte,
      " for each byte");
  return slowest;
}

}  // namespace rueda
