// The layout of a block of the int8 codec: a scale of two bytes, then one signed byte for each of
// up to block_elements values.
//
// The scale is a bfloat16, rounded up so that 127 times the scale reaches the block's largest
// magnitude. It is 0 if that is so small that the scale would be subnormal, and NaN if a value of
// the block is not finite.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda {

inline constexpr std::int64_t block_elements = 128;
inline constexpr std::size_t scale_bytes = 2;
inline constexpr std::uint16_t scale_of_not_finite = 0x7fc0;

}  // namespace rueda
