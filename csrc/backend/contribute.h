// A rank's contribution to a reduction over messages.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/backend.h"
#include "reduce/reduce.h"

namespace rueda {

// Fills `target` with this rank's contribution, scaled: `input`, or the identity if it is null.
inline void contribute(std::byte* target, const std::byte* input, std::int64_t count,
                       const Reduction& reduction) {
  if (input == nullptr) return fill_identity(target, count, reduction.dtype, reduction.op);
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(reduction.dtype);
  if (bytes > 0 && target != input) std::memmove(target, input, bytes);
  scale(target, count, reduction.dtype, reduction.prescale);
}

// Number of elements per chunk on a ring.
[[nodiscard]] inline std::int64_t chunk_elements(const Lane& lane, std::size_t element) {
  const auto chunk = lane.chunk_bytes / static_cast<std::int64_t>(element);
  return chunk > 0 ? chunk : 1;
}

}  // namespace rueda
