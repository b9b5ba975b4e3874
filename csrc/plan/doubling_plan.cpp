#include "plan/doubling_plan.h"

#include <bit>

namespace rueda {

namespace {

int largest_power(int size) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
}

}  // namespace

std::vector<Exchange> doubling_exchanges(int rank, int size) {
  const int power = largest_power(size);
  const int extra = size - power;  // every second one of the first 2 * extra ranks stands for two
  const bool is_paired = rank < 2 * extra;
  if (is_paired && rank % 2 == 0) {
    return {{rank + 1, true, false, false}, {rank + 1, false, true, false}};
  }
  std::vector<Exchange> exchanges;
  if (is_paired) exchanges.push_back({rank - 1, false, true, true});
  const int own = is_paired ? rank / 2 : rank - extra;
  for (int distance = 1; distance < power; distance *= 2) {
    const int other = own ^ distance;
    exchanges.push_back({other < extra ? 2 * other + 1 : other + extra, true, true, true});
  }
  if (is_paired) exchanges.push_back({rank - 1, true, false, false});
  return exchanges;
}

int doubling_hops(int size) {
  const int power = largest_power(size);
  return std::countr_zero(static_cast<unsigned>(power)) + (power == size ? 0 : 2);
}

}  // namespace rueda
