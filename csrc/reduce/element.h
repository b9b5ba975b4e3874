// How each element type is stored, and the type in which it is computed: one row of with_element()
// per type.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/float16.h"
#include "rueda/types.h"

namespace rueda {

// Reads an element at any address, from an array whose declared type is not known here.
template <class T>
[[nodiscard]] T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
template <class T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

// Computed in its stored type.
template <DataType id, class T>
struct NativeElement {
  static constexpr DataType dtype = id;
  using Value = T;
  static Value load(const std::byte* from) { return read<T>(from); }
  static void store(std::byte* to, Value value) { write<T>(to, value); }
};

// The parts are moved one by one: compilers do not vectorise over std::complex as a whole.
template <DataType id, class T>
struct ComplexElement {
  static constexpr DataType dtype = id;
  using Value = std::complex<T>;
  static Value load(const std::byte* from) { return {read<T>(from), read<T>(from + sizeof(T))}; }
  static void store(std::byte* to, Value value) {
    write<T>(to, value.real());
    write<T>(to + sizeof(T), value.imag());
  }
};

struct Float16Element {
  static constexpr DataType dtype = DataType::float16;
  using Value = float;
  static Value load(const std::byte* from) { return float16_to_float(read<std::uint16_t>(from)); }
  static void store(std::byte* to, Value value) { write(to, float_to_float16(value)); }
};

struct BFloat16Element {
  static constexpr DataType dtype = DataType::bfloat16;
  using Value = float;
  static Value load(const std::byte* from) { return bfloat16_to_float(read<std::uint16_t>(from)); }
  static void store(std::byte* to, Value value) { write(to, float_to_bfloat16(value)); }
};

// Any byte other than 0 reads as true; true is written as 1.
struct BooleanElement {
  static constexpr DataType dtype = DataType::boolean;
  using Value = bool;
  static Value load(const std::byte* from) { return read<std::uint8_t>(from) != 0; }
  static void store(std::byte* to, Value value) { write(to, static_cast<std::uint8_t>(value)); }
};

// Calls `visit` with the element of `dtype`.
template <class Visitor>
void with_element(DataType dtype, Visitor&& visit) {
  using enum DataType;
  switch (dtype) {
    case float16: return visit(Float16Element{});
    case bfloat16: return visit(BFloat16Element{});
    case float32: return visit(NativeElement<float32, float>{});
    case float64: return visit(NativeElement<float64, double>{});
    case int8: return visit(NativeElement<int8, std::int8_t>{});
    case int16: return visit(NativeElement<int16, std::int16_t>{});
    case int32: return visit(NativeElement<int32, std::int32_t>{});
    case int64: return visit(NativeElement<int64, std::int64_t>{});
    case uint8: return visit(NativeElement<uint8, std::uint8_t>{});
    case uint16: return visit(NativeElement<uint16, std::uint16_t>{});
    case uint32: return visit(NativeElement<uint32, std::uint32_t>{});
    case uint64: return visit(NativeElement<uint64, std::uint64_t>{});
    case boolean: return visit(BooleanElement{});
    case complex64: return visit(ComplexElement<complex64, float>{});
    case complex128: return visit(ComplexElement<complex128, double>{});
  }
}

template <class Element>
[[nodiscard]] typename Element::Value load(const std::byte* array, std::int64_t index) {
  return Element::load(array + index * static_cast<std::int64_t>(size_of(Element::dtype)));
}
template <class Element>
void store(std::byte* array, std::int64_t index, typename Element::Value value) {
  Element::store(array + index * static_cast<std::int64_t>(size_of(Element::dtype)), value);
}

}  // namespace rueda
