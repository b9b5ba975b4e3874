// Recursive doubling, as data: who exchanges what with whom, in as few hops as there can be.
//
// In each exchange two ranks swap what they hold and both combine it, so that after k of them every
// rank holds the sum of 2^k. Ranks beyond the largest power of two hand theirs to a neighbour first
// and get the result from it at the end. Thakur, Rabenseifner and Gropp, "Optimization of
// collective communication operations in MPICH", 2005.
#pragma once

#include <vector>

namespace rueda {

struct Exchange {
  int peer = 0;
  bool sends = false;
  bool receives = false;
  bool combines = false;  // what arrives is combined with what this rank holds; or replaces it
};

// What one rank does, in order. Two ranks that combine the same operands do so in the order of
// their numbers, so all end with the same bits.
[[nodiscard]] std::vector<Exchange> doubling_exchanges(int rank, int size);

// How many exchanges follow each other: log2(size), and two more where that is not whole.
[[nodiscard]] int doubling_hops(int size);

}  // namespace rueda
