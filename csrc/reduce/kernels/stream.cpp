// Copies past the caches.
#include "reduce/kernels/rows.h"

namespace rueda::RUEDA_KERNELS {

void stream_bytes(std::byte* target, const std::byte* input, std::size_t bytes) {
  constexpr std::size_t stride = 256;
  std::size_t at = (line_bytes - beyond_line(target)) % line_bytes;
  if (at > bytes) at = bytes;
  __builtin_memcpy(target, input, at);
  for (; at + stride <= bytes; at += stride) {
    Bytes values[stride / register_bytes];
    __builtin_memcpy(values, input + at, stride);
    for (std::size_t r = 0; r < stride / register_bytes; ++r) {
      stream(target + at + r * register_bytes, values[r]);
    }
  }
  finish_streams();
  __builtin_memcpy(target + at, input + at, bytes - at);
}

}  // namespace rueda::RUEDA_KERNELS
