// Recursive doubling and recursive halving, as data: who exchanges which elements with whom.
//
// Doubling: in each exchange two ranks swap what they hold and both combine it, so that after k
// exchanges every rank holds the sum of 2^k ranks. The fewest possible hops, each with all
// elements.
//
// Halving: a reduce-scatter, then an all-gather. Two ranks each give the half that the other one
// keeps, and combine what arrives; the next exchange halves what they have kept. Then the same
// exchanges backwards hand out what is complete. With P = 2^k ranks a rank sends 2(P-1)/P of the
// data, as around a ring, but in 2 log2(P) messages instead of 2(P-1).
//
// With both, ranks beyond the largest power of two first give their data to a neighbour, which
// returns the result at the end. Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", 2005.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/ring_plan.h"

namespace rueda {

struct Exchange {
  int peer = 0;
  Segment sends;  // elements; nothing if its count is 0
  Segment receives;
  bool combines = false;  // combines what arrives with what this rank holds; otherwise replaces it
};

// What one rank does.
struct RecursivePlan {
  // In order. Two ranks that combine the same operands do so in the order of their rank numbers.
  // Exchanges without elements are left out, by both ranks.
  std::vector<Exchange> exchanges;
  // After this many exchanges, this rank holds the reduction of `own`; with halving, no other rank
  // does. So all ranks end with the same bits.
  std::size_t reduced_after = 0;
  Segment own;
};

[[nodiscard]] RecursivePlan doubling_plan(int rank, int size, std::int64_t count);
[[nodiscard]] RecursivePlan halving_plan(int rank, int size, std::int64_t count);

// The number of consecutive exchanges: log2(size) or twice that, rounded down, and two more if size
// is not a power of two.
[[nodiscard]] int doubling_hops(int size);
[[nodiscard]] int halving_hops(int size);

}  // namespace rueda
