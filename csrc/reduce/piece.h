// The unit of every batch: one rank's part in the reduction of one tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rueda {

// One tensor of a batch.
struct Piece {
  const std::byte* input = nullptr;  // null, and not empty: this rank contributes nothing
  std::byte* output = nullptr;       // may be the input; null: this rank has no use for the result
  std::int64_t count = 0;            // elements
  // With a compression: what it has lost of this tensor so far, as float32, or null; and for what
  // it chooses at random.
  float* residual = nullptr;
  std::uint64_t seed = 0;
  std::int64_t first = 0;  // where it begins in its tensor
};

// Whether a rank contributes to a batch: it does to all pieces or to none.
[[nodiscard]] inline bool contributes(const std::vector<Piece>& pieces) {
  return std::none_of(pieces.begin(), pieces.end(),
                      [](const Piece& piece) { return piece.count > 0 && piece.input == nullptr; });
}

}  // namespace rueda
