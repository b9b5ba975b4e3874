// What an allreduce may send instead of its elements: fewer bytes, with a known error.
// docs/compression.md has the equations, their sources and the cost of each codec.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace rueda {

// The numeric values travel between ranks, so they are part of the wire format.
enum class CodecKind : std::uint8_t {
  none,      // elements unchanged
  float16,   // IEEE half precision: 16 bits, relative error 2^-11, up to 65504
  bfloat16,  // the upper half of a float32: 16 bits, relative error 2^-8
  int8,      // blocks of 128 integers with a common scale: 8.125 bits per element
  top_k,     // the elements of largest magnitude, 48 bits each
  random_k,  // randomly chosen elements, 48 bits each
};

inline constexpr std::array<std::string_view, 6> codec_names{"none", "fp16",  "bf16",
                                                             "int8", "top_k", "random_k"};

[[nodiscard]] constexpr std::string_view name_of(CodecKind codec) {
  return codec_names.at(static_cast<std::size_t>(codec));
}

// Whether only some elements travel. The rest is lost unless it is kept for later
// (AllreduceOptions::residuals).
[[nodiscard]] constexpr bool is_sparse(CodecKind codec) {
  return codec == CodecKind::top_k || codec == CodecKind::random_k;
}

struct Compression {
  CodecKind codec = CodecKind::none;
  // top_k and random_k: the fraction of its elements that each rank sends, above 0 and at most 1.
  // At least one element of each run travels.
  double fraction = 0;

  [[nodiscard]] bool operator==(const Compression&) const = default;
};

}  // namespace rueda
