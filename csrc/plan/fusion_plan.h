// Which responses share a fusion buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/response.h"

namespace rueda {

// Indices into the list of responses, in the order of their place in the buffer.
struct Fusion {
  std::vector<std::size_t> members;
};

// Batches the responses of one list, the same way on every rank. Allreduces that agree in dtype,
// compression, leaves, operation, scale, priority and absent ranks share a batch of up to
// `threshold` bytes. What does not fit (another dtype, or too large a tensor) is skipped, and the
// first of the last few batches with room is used. A tensor that fills the threshold, and every
// other kind of response, gets its own batch. A threshold of 0 fuses nothing. Batches are in the
// order of their first members.
[[nodiscard]] std::vector<Fusion> fuse(const ResponseList& responses, std::int64_t threshold);
[[nodiscard]] std::vector<Fusion> fuse(std::span<const Response* const> responses,
                                       std::int64_t threshold);

}  // namespace rueda
