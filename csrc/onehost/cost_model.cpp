#include "onehost/cost_model.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "core/interruption.h"
#include "core/strings.h"
#include "onehost/host_reduction.h"
#include "onehost/placement.h"
#include "onehost/registered_memory.h"

namespace rueda {

namespace {

// Not used by any process set.
constexpr std::uint64_t measuring_key = ~std::uint64_t{0};

constexpr int runs = 40;
// If ranks share processors, a run takes long, so fewer have to do.
constexpr int runs_when_oversubscribed = 8;
// After which no further run begins. On processors that other programs keep busy, each meeting of
// the ranks may take a whole time slice of theirs.
constexpr auto time_per_figure = std::chrono::milliseconds(40);
constexpr std::size_t small_bytes = 2 << 10;
constexpr std::size_t middle_bytes = 32 << 10;

// With many ranks, copying whole slots would take long and is not worth it.
std::size_t large_bytes_of(int ranks) {
  constexpr std::size_t together = 2 << 20;
  return std::clamp(std::bit_floor(together / static_cast<std::size_t>(ranks)), 2 * middle_bytes,
                    slot_bytes);
}

constexpr auto max_retreat = std::chrono::seconds(1);

class Measurement {
 public:
  Measurement(const std::shared_ptr<HostMemory>& host, Time deadline)
      : channel_(host, all_ranks(*host), host->rank(), measuring_key,
                 HostChannel::WokenBy::channel),
        placement_(host->is_oversubscribed() ? nullptr : host),
        runs_(host->is_oversubscribed() ? runs_when_oversubscribed : runs),
        deadline_(deadline) {}

  // ns from this rank's call to its return: the lower quartile, since disturbances only add time. 0
  // if the deadline had already passed. Ranks started on the same processor take turns there, which
  // distorts how methods compare on separate processors; such runs count only if there are no
  // others.
  double time(std::byte* data, std::size_t bytes, const HostPolicy& policy) {
    const Piece piece{data, data, static_cast<std::int64_t>(bytes / sizeof(float))};
    HostReduction reduction(channel_, policy, {}, channel_.size(), {piece},
                            HostCollective::Begin::later);
    float ranks_out_of_time = 0;
    HostReduction meeting(channel_, {}, {}, channel_.size(),
                          {{as_bytes(ranks_out_of_time), as_bytes(ranks_out_of_time), 1}},
                          HostCollective::Begin::later);
    const Time last_begin = Clock::now() + time_per_figure;
    std::vector<double> times;
    std::vector<double> times_on_one;
    for (int run = 0; run < runs_ && !late_; ++run) {
      if (bytes > 0) std::memset(data, 0, bytes);  // an application would write it, too
      ranks_out_of_time = run > 0 && Clock::now() >= last_begin ? 1 : 0;
      finish(meeting);
      if (ranks_out_of_time > 0) break;  // all ranks see this sum
      shared_ = false;
      const Time begin = Clock::now();
      finish(reduction);
      const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
      (shared_ ? times_on_one : times).push_back(took.count());
    }
    if (times.size() < 4) times.insert(times.end(), times_on_one.begin(), times_on_one.end());
    if (times.empty()) return 0;
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4),
                     times.end());
    return times[times.size() / 4];
  }

  MeasuredCost cost(std::byte* data, std::size_t large_bytes, const HostPolicy& policy) {
    return {time(data, small_bytes, policy), time(data, middle_bytes, policy),
            time(data, large_bytes, policy)};
  }

  [[nodiscard]] bool late() const { return late_; }

  // After an interruption: whether no other rank accesses this one's memory any more. The other
  // ranks are interrupted by the same cause, so this does not wait long.
  [[nodiscard]] bool retreat() {
    channel_.stop();
    const Time until = std::min<Time>(deadline_, Clock::now() + max_retreat);
    for (int member = 0; member < channel_.size(); ++member) {
      while (member != channel_.rank() && !channel_.has_stopped(member)) {
        if (Clock::now() >= until) return false;
        sched_yield();
      }
    }
    return true;
  }

 private:
  static std::byte* as_bytes(float& value) { return reinterpret_cast<std::byte*>(&value); }

  static std::vector<int> all_ranks(const HostMemory& host) {
    std::vector<int> ranks(static_cast<std::size_t>(host.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void finish(HostReduction& reduction) {
    if (late_) return;
    reduction.start();
    for (int look = 1; !late_ && !reduction.done(); ++look) {
      if (reduction.advance() || look % 64 != 0) continue;
      const Time now = Clock::now();
      const bool shares = placement_.shares_processor();
      shared_ = shared_ || shares;
      // Other ranks may need this very processor.
      if (!shares || !placement_.move_apart(now)) sched_yield();
      late_ = now >= deadline_;
      if (!is_interruptible() || now < next_look_) continue;
      next_look_ = now + pause_between_looks();
      look_for_interruption();
    }
  }

  HostChannel channel_;
  Placement placement_;
  bool shared_ = false;  // with another rank, since it was last reset
  const int runs_;
  const Time deadline_;
  bool late_ = false;
  Time next_look_ = Clock::now();
};

HostPolicy always_flat() {
  HostPolicy policy;
  policy.flat_limit = slot_bytes;
  policy.registered_min = SIZE_MAX;
  return policy;
}

HostPolicy always_staged() {
  HostPolicy policy;
  policy.flat_limit = 0;
  policy.staged_limit = SIZE_MAX;
  return policy;
}

HostPolicy always_direct() {
  HostPolicy policy;
  policy.flat_limit = 0;
  policy.huge_pages = false;  // as for operations by name
  return policy;
}

// Measures everything; `any` and `registered` have large_bytes_of() bytes.
HostCosts measure_all(Measurement& measurement, const HostMemory& host, std::byte* any,
                      std::byte* registered) {
  const std::size_t large_bytes = large_bytes_of(host.size());
  HostCosts costs;
  costs.exchange = measurement.time(nullptr, 0, {});
  costs.large_bytes = static_cast<double>(large_bytes);
  costs.flat = measurement.cost(any, large_bytes, always_flat());
  if (Staging::is_possible(host.size())) {
    costs.staged = measurement.cost(any, large_bytes, always_staged());
  }
  costs.registered = measurement.cost(registered, large_bytes, always_direct());
  if (host.has_direct_access()) {
    costs.direct = measurement.cost(any, large_bytes, always_direct());
    return costs;
  }
  // Otherwise through a copy in registered memory, both ways.
  const auto copied = [&](double there, double flat) {
    return there + std::max(0.0, flat - costs.at(costs.flat, 0));
  };
  costs.direct = {copied(costs.registered.small, costs.flat.small),
                  copied(costs.registered.middle, costs.flat.middle),
                  copied(costs.registered.large, costs.flat.large)};
  return costs;
}

Expected<HostCosts> measure(const std::shared_ptr<HostMemory>& host, Time deadline) {
  const std::size_t large_bytes = large_bytes_of(host->size());
  const auto pool = RegisteredMemory::of_process();
  auto registered = pool ? pool.value()->allocate(large_bytes) : nullptr;
  if (!registered) return Status(ErrorCode::initialization, "no registered memory is left");
  std::vector<std::byte> any(large_bytes);
  Measurement measurement(host, deadline);
  HostCosts costs;
  try {
    costs = measure_all(measurement, *host, any.data(), registered.get());
  } catch (...) {                  // interrupted
    if (!measurement.retreat()) {  // never reuse memory that may still be written to
      std::ignore = new auto(std::move(any));
      std::ignore = new auto(std::move(registered));
    }
    throw;
  }
  if (measurement.late()) {
    return Status(ErrorCode::initialization, "the ranks of this host do not answer each other");
  }
  return costs;
}

std::array<double*, 14> figures_of(HostCosts& costs) {
  return {&costs.exchange,          &costs.large_bytes,      &costs.flat.small,
          &costs.flat.middle,       &costs.flat.large,       &costs.direct.small,
          &costs.direct.middle,     &costs.direct.large,     &costs.registered.small,
          &costs.registered.middle, &costs.registered.large, &costs.staged.small,
          &costs.staged.middle,     &costs.staged.large};
}

std::string text_of(HostCosts costs) {
  std::string text;
  for (const double* figure : figures_of(costs)) text += str(*figure, " ");
  return text;
}

std::optional<HostCosts> costs_of(const std::string& text) {
  HostCosts costs;
  const char* next = text.data();
  const char* end = text.data() + text.size();
  for (double* figure : figures_of(costs)) {
    const auto [stop, error] = std::from_chars(next, end, *figure);
    if (error != std::errc() || !(*figure >= 0) || stop == end) return std::nullopt;
    next = stop + 1;
  }
  return costs;
}

// The size from which `direct` is faster; the largest measured size if it never is.
std::size_t crossing(const HostCosts& costs, const MeasuredCost& direct, std::size_t from) {
  std::size_t bytes = from;
  while (static_cast<double>(bytes) < costs.large_bytes &&
         costs.at(costs.flat, bytes) <= costs.at(direct, bytes)) {
    bytes *= 2;
  }
  return bytes;
}

// Larger tensors are on huge pages if the allocator arranges that, and are accessed faster than
// those measured.
constexpr std::size_t likely_on_huge_pages = 4 << 20;
// Upper limit on how much faster tensors on huge pages are accessed.
constexpr double gain_of_huge_pages = 1.5;

// Cost of the alternative to staging: flat up to `limit`, beyond which slots may have no room for
// it, however good it was there.
double other_than_staged(const HostCosts& costs, std::size_t limit, std::size_t bytes) {
  return costs.at(bytes < limit ? costs.flat : costs.direct, bytes);
}

// The size from which staging is fastest by a clear margin, since it needs more of the ranks to be
// awake at once. Twice the largest measured size if it never is.
std::size_t staged_from(const HostCosts& costs, std::size_t limit) {
  constexpr double clearly = 0.9;
  std::size_t bytes = 256;
  while (static_cast<double>(bytes) <= costs.large_bytes &&
         costs.at(costs.staged, bytes) >= clearly * other_than_staged(costs, limit, bytes)) {
    bytes *= 2;
  }
  return bytes;
}

// Where that ends, if it starts at `from`; nullopt if it does not end.
std::optional<std::size_t> staged_until(const HostCosts& costs, std::size_t limit,
                                        std::size_t from) {
  std::size_t bytes = from;
  while (static_cast<double>(bytes) <= costs.large_bytes) {
    if (costs.at(costs.staged, bytes) >= other_than_staged(costs, limit, bytes)) return bytes;
    bytes *= 2;
  }
  const bool always = costs.staged.large * gain_of_huge_pages < costs.direct.large;
  return always ? std::nullopt : std::optional(likely_on_huge_pages);
}

}  // namespace

double HostCosts::at(const MeasuredCost& cost, std::size_t bytes) const {
  const auto size = static_cast<double>(bytes);
  const bool is_upper = bytes > middle_bytes;
  const double x0 = is_upper ? middle_bytes : small_bytes;
  const double x1 = is_upper ? large_bytes : middle_bytes;
  const double y0 = is_upper ? cost.middle : cost.small;
  const double y1 = is_upper ? cost.large : cost.middle;
  return std::max(0.0, y0 + (size - x0) * std::max(0.0, y1 - y0) / (x1 - x0));
}

HostPolicy policy_of(const HostCosts& costs) {
  HostPolicy policy;
  policy.flat_limit = crossing(costs, costs.direct, 1 << 10);
  policy.registered_min = crossing(costs, costs.registered, 256);
  return policy;
}

AlgorithmTable table_of(const HostCosts& costs) {
  const std::size_t flat_limit = policy_of(costs).flat_limit;
  const auto limit = static_cast<std::int64_t>(flat_limit);
  const AlgorithmTable otherwise = AlgorithmTable::of_limit(limit);
  const std::size_t from = staged_from(costs, flat_limit);
  if (costs.staged.large <= 0 || static_cast<double>(from) > costs.large_bytes) return otherwise;
  std::vector<AlgorithmTable::Row> rows;
  for (const AlgorithmTable::Row& row : otherwise.rows()) {
    if (row.from < static_cast<std::int64_t>(from)) rows.push_back(row);
  }
  rows.push_back({static_cast<std::int64_t>(from), Algorithm::staged});
  if (const auto until = staged_until(costs, flat_limit, from)) {
    const auto end = static_cast<std::int64_t>(*until);
    rows.push_back({end, otherwise.choose(end)});
    if (end < limit) rows.push_back({limit, Algorithm::direct});
  }
  return AlgorithmTable::of_rows(std::move(rows));
}

Expected<HostCosts> measure_costs(Bootstrap& bootstrap, const std::shared_ptr<HostMemory>& host,
                                  Time deadline) {
  const auto own = measure(host, deadline);
  const auto all = bootstrap.allgather(
      "host/costs",
      own ? Expected<std::string>(text_of(own.value())) : Expected<std::string>(own.status()),
      deadline);
  if (!all) return all.status();
  const auto agreed = costs_of(all.value().front());
  if (!agreed) return Status(ErrorCode::internal, "rank 0 has sent invalid costs", 0);
  return *agreed;
}

}  // namespace rueda
