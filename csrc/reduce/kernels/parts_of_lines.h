// Reads and writes less than a 64-byte line, for instruction sets without masks.
#pragma once

#include <cstddef>

namespace rueda::RUEDA_KERNELS {

// `bytes` < 64, in pieces of halving size.
[[gnu::always_inline]] inline void copy_part(std::byte* to, const std::byte* from,
                                             std::size_t bytes) {
  const auto piece = [&]<std::size_t size>() __attribute__((always_inline)) {
    if ((bytes & size) == 0) return;
    __builtin_memcpy(to, from, size);
    to += size;
    from += size;
  };
  piece.template operator()<32>();
  piece.template operator()<16>();
  piece.template operator()<8>();
  piece.template operator()<4>();
  piece.template operator()<2>();
  piece.template operator()<1>();
}

// The first `bytes` of a 64-byte line; the rest of it reads as zero and is not written.
[[gnu::always_inline]] inline void read_part(std::byte* line, const std::byte* from,
                                             std::size_t bytes) {
  __builtin_memset(line, 0, 64);
  copy_part(line, from, bytes);
}
[[gnu::always_inline]] inline void write_part(std::byte* to, const std::byte* line,
                                              std::size_t bytes) {
  copy_part(to, line, bytes);
}

}  // namespace rueda::RUEDA_KERNELS
