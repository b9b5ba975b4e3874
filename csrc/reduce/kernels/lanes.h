// How a register of each element type is widened and narrowed. Compiled once for each instruction
// set, whose folder contains the registers.h included here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "registers.h"

namespace rueda::RUEDA_KERNELS {

template <class T>
struct RegisterOf {
  using type [[gnu::vector_size(register_bytes)]] = T;
};
template <class T>
using Register = typename RegisterOf<T>::type;

// The values in which the elements of one register are computed.
template <class T, int registers>
struct Values {
  static constexpr int size = registers;
  using Lane = T;
  Register<T> part[registers];
};

template <class V>
[[gnu::always_inline]] inline V read_register(const std::byte* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

// Numbers that are computed in their stored type.
template <class T>
struct Native {
  using Lanes = Values<T, 1>;
  static constexpr std::size_t size = sizeof(T);

  [[gnu::always_inline]] static Lanes load(const std::byte* from) {
    return {{read_register<Register<T>>(from)}};
  }
  [[gnu::always_inline]] static Bytes narrow(const Lanes& value) {
    return reinterpret_cast<Bytes>(value.part[0]);
  }
};

// Any byte other than 0 reads as true; true is written as 1.
struct Boolean {
  using Lanes = Values<std::uint8_t, 1>;
  static constexpr std::size_t size = 1;

  [[gnu::always_inline]] static Lanes load(const std::byte* from) {
    const auto bytes = read_register<Bytes>(from);
    return {{reinterpret_cast<Bytes>(bytes != 0) & 1}};
  }
  [[gnu::always_inline]] static Bytes narrow(const Lanes& value) { return value.part[0]; }
};

struct Float16 {
  using Lanes = Values<float, 2>;
  static constexpr std::size_t size = 2;
  static constexpr bool in_pairs =
      float16_in_pairs;  // even places in one part, odd ones in the other

  [[gnu::always_inline]] static Lanes load(const std::byte* from) {
    const Widened widened = widen_float16(from);
    return {{widened.part[0], widened.part[1]}};
  }
  [[gnu::always_inline]] static Bytes narrow(const Lanes& value) {
    return narrow_float16({{value.part[0], value.part[1]}});
  }
};

// The upper half of a float32. Elements at even places widen by a shift, those at odd places by a
// mask, so that nothing crosses lanes.
struct BFloat16 {
  using Lanes = Values<float, 2>;
  static constexpr std::size_t size = 2;
  static constexpr bool in_pairs = true;

  [[gnu::always_inline]] static Lanes load(const std::byte* from) {
    const auto pairs = read_register<Bits>(from);
    return {{reinterpret_cast<Floats>(pairs << 16), reinterpret_cast<Floats>(pairs & 0xffff0000)}};
  }
  [[gnu::always_inline]] static Bytes narrow(const Lanes& value) {
    return reinterpret_cast<Bytes>((rounded(value.part[0]) >> 16) |
                                   (rounded(value.part[1]) & 0xffff0000));
  }

 private:
  // The upper half is the result. Like float_to_bfloat16() in reduce/float16.h.
  [[gnu::always_inline]] static Bits rounded(Floats value) {
    const auto bits = reinterpret_cast<Bits>(value);
    const Bits to_even = bits + 0x7fff + ((bits >> 16) & 1);
    return value == value ? to_even : bits | 0x00400000;
  }
};

}  // namespace rueda::RUEDA_KERNELS
