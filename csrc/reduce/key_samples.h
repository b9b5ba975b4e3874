// Estimates from samples how many distinct keys several parts have together, and their
// distribution.
//
// A part's sample has its keys with the smallest hashes. So the samples of several parts together
// are a sample of the union, in which a key that many parts have counts once (Bar-Yossef et al.,
// "Counting distinct elements in a data stream", RANDOM 2002).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reduce/keyed_rows.h"

namespace rueda {

// Of distinct keys of `key_bytes` (4 or 8), the `limit` with the smallest hashes, ascending; all of
// them if they are not more. Each rank gets the same for the same keys.
[[nodiscard]] std::vector<std::int64_t> sample_keys(const KeyedRows& rows, std::size_t key_bytes,
                                                    std::size_t limit);

struct KeySample {
  KeyedRows keys;         // the part's smallest hashes, or all of its keys; without values
  std::int64_t rows = 0;  // of the whole part
};

class UnionSample {
 public:
  // `extent`: more distinct keys than that there cannot be.
  UnionSample(std::span<const KeySample> samples, std::size_t key_bytes, std::int64_t extent);

  // The number of distinct keys of all parts: exact if every sample has all keys, else estimated.
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  // Where to cut the keys so that `parts` have about as many of the union: the first key of each
  // part but the first. Empty if there are no keys.
  [[nodiscard]] std::vector<std::int64_t> boundaries(std::size_t parts) const;

 private:
  std::vector<std::int64_t> keys_;  // some of the union's, ascending
  std::int64_t rows_ = 0;
};

}  // namespace rueda
