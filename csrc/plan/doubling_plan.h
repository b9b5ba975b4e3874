// Recursive doubling, as data: who exchanges what with whom, in the fewest possible hops.
//
// In each exchange two ranks swap what they hold and both combine it, so that after k exchanges
// every rank holds the sum of 2^k ranks. Ranks beyond the largest power of two first give their
// data to a neighbour, which returns the result at the end. Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", 2005.
#pragma once

#include <vector>

namespace rueda {

struct Exchange {
  int peer = 0;
  bool sends = false;
  bool receives = false;
  bool combines = false;  // combines what arrives with what this rank holds; otherwise replaces it
};

// The exchanges of one rank, in order. Two ranks that combine the same operands do so in the order
// of their rank numbers, so all end with the same bits.
[[nodiscard]] std::vector<Exchange> doubling_exchanges(int rank, int size);

// The number of consecutive exchanges: log2(size), rounded down and plus two if not whole.
[[nodiscard]] int doubling_hops(int size);

}  // namespace rueda
