#include "onehost/cost_model.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <numeric>
#include <optional>

#include "core/strings.h"
#include "onehost/hear_all.h"
#include "onehost/host_reduction.h"
#include "onehost/registered_memory.h"

namespace rueda {

namespace {

// No process set has this key.
constexpr std::uint64_t measuring_key = ~std::uint64_t{0};

constexpr int runs = 40;
// Where ranks share processors a run takes long, and fewer must do.
constexpr int runs_when_crowded = 8;
constexpr std::size_t small_bytes = 2 << 10;
constexpr std::size_t large_bytes = 32 << 10;
static_assert(large_bytes <= slot_bytes);

class Measurement {
 public:
  Measurement(const std::shared_ptr<HostMemory>& host, Time deadline)
      : channel_(host, all_ranks(*host), host->rank(), measuring_key,
                 HostChannel::WokenBy::channel),
        runs_(host->outnumbers_processors() ? runs_when_crowded : runs),
        deadline_(deadline) {}

  // ns from this rank's call to its return: the lower quartile, since disturbances only add.
  double time(std::byte* data, std::size_t bytes, const HostPolicy& policy) {
    const Piece piece{data, data, static_cast<std::int64_t>(bytes / sizeof(float))};
    HostReduction reduction(channel_, policy, {}, channel_.size(), {piece},
                            HostCollective::Begin::later);
    HostReduction meeting(channel_, policy, {}, channel_.size(), {}, HostCollective::Begin::later);
    std::vector<double> times;
    for (int run = 0; run < runs_ && !late_; ++run) {
      if (bytes > 0) std::memset(data, 0, bytes);  // as an application would write it
      finish(meeting);
      const Time begin = Clock::now();
      finish(reduction);
      times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4),
                     times.end());
    return times[times.size() / 4];
  }

  LinearCost line(std::byte* data, const HostPolicy& policy) {
    const double small = time(data, small_bytes, policy);
    const double large = time(data, large_bytes, policy);
    LinearCost cost;
    cost.per_byte = std::max(0.0, large - small) / (large_bytes - small_bytes);
    cost.base = std::max(0.0, small - cost.per_byte * small_bytes);
    return cost;
  }

  [[nodiscard]] bool late() const { return late_; }

 private:
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
      sched_yield();  // others may need this very processor
      late_ = Clock::now() >= deadline_;
    }
  }

  HostChannel channel_;
  const int runs_;
  const Time deadline_;
  bool late_ = false;
};

HostPolicy always_flat() {
  HostPolicy policy;
  policy.flat_limit = slot_bytes;
  policy.registered_min = SIZE_MAX;
  return policy;
}

HostPolicy always_direct() {
  HostPolicy policy;
  policy.flat_limit = 0;
  return policy;
}

Expected<HostCosts> measure(const std::shared_ptr<HostMemory>& host, Time deadline) {
  const auto pool = RegisteredMemory::of_process();
  const auto registered = pool ? pool.value()->allocate(large_bytes) : nullptr;
  if (!registered) return Status(ErrorCode::initialization, "no registered memory is left");
  std::vector<std::byte> any(large_bytes);
  Measurement measurement(host, deadline);
  HostCosts costs;
  costs.exchange = measurement.time(nullptr, 0, {});
  costs.flat = measurement.line(any.data(), always_flat());
  costs.registered = measurement.line(registered.get(), always_direct());
  if (host->has_direct_access()) {
    costs.direct = measurement.line(any.data(), always_direct());
  } else {
    // Through a copy in registered memory, there and back.
    costs.direct = costs.registered;
    costs.direct.per_byte += costs.flat.per_byte;
  }
  if (measurement.late()) {
    return Status(ErrorCode::initialization, "the ranks of this host do not answer each other");
  }
  return costs;
}

std::array<double*, 7> figures_of(HostCosts& costs) {
  return {&costs.exchange,           &costs.flat.base,       &costs.flat.per_byte,
          &costs.direct.base,        &costs.direct.per_byte, &costs.registered.base,
          &costs.registered.per_byte};
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

// The size from which `direct` is the shorter; a slot's where it never is.
std::size_t crossing(const LinearCost& flat, const LinearCost& direct, std::size_t from) {
  std::size_t bytes = from;
  while (bytes < slot_bytes && flat.at(bytes) <= direct.at(bytes)) bytes *= 2;
  return bytes;
}

}  // namespace

HostPolicy policy_of(const HostCosts& costs) {
  HostPolicy policy;
  policy.flat_limit = crossing(costs.flat, costs.direct, 1 << 10);
  policy.registered_min = crossing(costs.flat, costs.registered, 256);
  return policy;
}

Expected<HostCosts> measure_costs(Bootstrap& bootstrap, const std::shared_ptr<HostMemory>& host,
                                  Time deadline) {
  const auto own = measure(host, deadline);
  const auto all = hear_all(
      bootstrap, "host/costs",
      own ? Expected<std::string>(text_of(own.value())) : Expected<std::string>(own.status()),
      deadline);
  if (!all) return all.status();
  const auto agreed = costs_of(all.value().front());
  if (!agreed) return Status(ErrorCode::internal, "rank 0 has sent costs that make no sense", 0);
  return *agreed;
}

}  // namespace rueda
