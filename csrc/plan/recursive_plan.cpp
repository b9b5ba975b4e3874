#include "plan/recursive_plan.h"

#include <algorithm>
#include <bit>

namespace rueda {

namespace {

// Those that exchange: `power` ranks, of which the first `extra` each stand for two.
struct Participants {
  int power = 1;
  int extra = 0;

  explicit Participants(int size)
      : power(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))), extra(size - power) {}

  [[nodiscard]] bool is_paired(int rank) const { return rank < 2 * extra; }
  // A rank that leaves the exchanges to the next one.
  [[nodiscard]] bool is_represented(int rank) const { return is_paired(rank) && rank % 2 == 0; }
  [[nodiscard]] int place_of(int rank) const { return is_paired(rank) ? rank / 2 : rank - extra; }
  [[nodiscard]] int at(int place) const { return place < extra ? 2 * place + 1 : place + extra; }
  [[nodiscard]] int rounds() const { return std::countr_zero(static_cast<unsigned>(power)); }
};

void add(std::vector<Exchange>& exchanges, const Exchange& exchange) {
  if (exchange.sends.count + exchange.receives.count > 0) exchanges.push_back(exchange);
}

RecursivePlan represented_plan(int rank, Segment whole) {
  RecursivePlan plan;
  add(plan.exchanges, {rank + 1, whole, {}, false});
  add(plan.exchanges, {rank + 1, {}, whole, false});
  return plan;
}

// The number of elements in the first `blocks` of `of`, which are as even as possible.
std::int64_t elements(std::int64_t count, int of, int blocks) {
  return count / of * blocks + std::min<std::int64_t>(count % of, blocks);
}

}  // namespace

RecursivePlan doubling_plan(int rank, int size, std::int64_t count) {
  const Participants all(size);
  const Segment whole{0, count};
  if (all.is_represented(rank)) return represented_plan(rank, whole);
  RecursivePlan plan;
  if (all.is_paired(rank)) add(plan.exchanges, {rank - 1, {}, whole, true});
  for (int distance = 1; distance < all.power; distance *= 2) {
    add(plan.exchanges, {all.at(all.place_of(rank) ^ distance), whole, whole, true});
  }
  plan.reduced_after = plan.exchanges.size();
  plan.own = whole;
  if (all.is_paired(rank)) add(plan.exchanges, {rank - 1, whole, {}, false});
  return plan;
}

RecursivePlan halving_plan(int rank, int size, std::int64_t count) {
  const Participants all(size);
  const Segment whole{0, count};
  if (all.is_represented(rank)) return represented_plan(rank, whole);
  RecursivePlan plan;
  if (all.is_paired(rank)) add(plan.exchanges, {rank - 1, {}, whole, true});

  // The elements fall into `power` blocks. With each exchange, a place keeps those of its blocks
  // whose numbers share one more bit with its own.
  const int place = all.place_of(rank);
  const auto blocks = [&](int any, int number) {
    const std::int64_t first = elements(count, all.power, any / number * number);
    const std::int64_t end = elements(count, all.power, any / number * number + number);
    return Segment{first, end - first};
  };
  std::vector<Exchange> gathers;
  for (int distance = all.power / 2; distance >= 1; distance /= 2) {
    const int other = place ^ distance;
    const Segment kept = blocks(place, distance);
    const Segment given = blocks(other, distance);
    add(plan.exchanges, {all.at(other), given, kept, true});
    add(gathers, {all.at(other), kept, given, false});
  }
  plan.reduced_after = plan.exchanges.size();
  plan.own = blocks(place, 1);
  plan.exchanges.insert(plan.exchanges.end(), gathers.rbegin(), gathers.rend());
  if (all.is_paired(rank)) add(plan.exchanges, {rank - 1, whole, {}, false});
  return plan;
}

int doubling_hops(int size) {
  const Participants all(size);
  return all.rounds() + (all.extra == 0 ? 0 : 2);
}

int halving_hops(int size) {
  const Participants all(size);
  return 2 * all.rounds() + (all.extra == 0 ? 0 : 2);
}

}  // namespace rueda
