// The unit of every batch: one rank's part in the reduction of one tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rueda {

// What a compression keeps of a tensor from call to call.
struct KeptByCodec {
  float* residual = nullptr;  // for each element, what has been lost of it so far; or null
  float* velocity = nullptr;  // for each element, the accumulated momentum; or null
  float momentum = 0;
  std::uint64_t seed = 0;  // for random choices

  // The same for the elements from `first` on.
  [[nodiscard]] KeptByCodec from(std::int64_t first) const {
    const auto shifted = [first](float* each) { return each == nullptr ? nullptr : each + first; };
    return {shifted(residual), shifted(velocity), momentum, seed};
  }
};

// One tensor of a batch.
struct Piece {
  const std::byte* input = nullptr;  // null, though not empty: this rank contributes nothing
  std::byte* output = nullptr;       // may be the input; null: this rank does not need the result
  std::int64_t count = 0;            // elements
  KeptByCodec kept = {};
  std::int64_t first = 0;  // offset in its tensor
};

// Whether a rank contributes to a batch: to all pieces or to none.
[[nodiscard]] inline bool contributes(const std::vector<Piece>& pieces) {
  return std::none_of(pieces.begin(), pieces.end(),
                      [](const Piece& piece) { return piece.count > 0 && piece.input == nullptr; });
}

}  // namespace rueda
