// Every operation on every element type that supports it, checked against unit/reduce_reference.h.
#include "reduce/reduce.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>

#include "unit/reduce/reduce_reference.h"

namespace rueda::test::reduce_test {
namespace {

// Below, at and beyond the length of a vector register.
constexpr std::array<std::int64_t, 9> counts{0, 1, 2, 3, 7, 31, 64, 1000, 1003};

// A copy of `elements` at an address misaligned by `offset`, surrounded by guard bytes.
class Placed {
 public:
  Placed(const Bytes& elements, std::size_t offset)
      : begin_(guard + offset), size_(elements.size()), bytes_(2 * guard + offset + size_, fence) {
    std::copy(elements.begin(), elements.end(),
              bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
  }

  [[nodiscard]] std::byte* elements() { return bytes_.data() + begin_; }
  [[nodiscard]] bool fences_stand() const {
    const auto stands = [](std::byte byte) { return byte == fence; };
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(bytes_.begin(), first, stands) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(size_), bytes_.end(), stands);
  }

 private:
  static constexpr std::size_t guard = 64;
  static constexpr std::byte fence{0xa5};
  std::size_t begin_;
  std::size_t size_;
  Bytes bytes_;
};

// Counts elements for which is_right(index, value) is false. Booleans must also be 0 or 1.
template <class Type, class IsRight>
std::int64_t count_wrong(const std::byte* array, std::int64_t count, const IsRight& is_right) {
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::byte* element = array + i * static_cast<std::int64_t>(Type::size);
    if (Type::dtype == DataType::boolean && *element > std::byte{1}) ++wrong;
    if (!is_right(i, Type::decode(element))) ++wrong;
  }
  return wrong;
}

template <class Type>
typename Type::Value element(const Bytes& elements, std::int64_t index) {
  return Type::decode(&elements[static_cast<std::size_t>(index) * Type::size]);
}

// Calls check(type, count, offset) for all types, counts and alignments, including unaligned.
template <class Check>
void for_each_placement(const Check& check) {
  for_each_type([&]<class Type>(Type type) {
    for (const std::int64_t count : counts) {
      for (const std::size_t offset :
           {std::size_t{0}, Type::size, 3 * Type::size, std::size_t{1}}) {
        INFO(name_of(Type::dtype) << ", " << count << " elements, off by " << offset << " bytes");
        check(type, count, offset);
      }
    }
  });
}

TEST_CASE("reduce combines element by element") {
  std::mt19937 random(1);
  for_each_placement([&]<class Type>(Type, std::int64_t count, std::size_t offset) {
    const Bytes left = random_elements<Type>(count, random);
    const Bytes right = random_elements<Type>(count, random);
    for (const ReduceOp op : all_ops) {
      if (!is_supported(op, Type::dtype)) continue;
      INFO(name_of(op));
      Placed target(left, offset);
      Placed source(right, 2 * offset);
      reduce(target.elements(), source.elements(), count, Type::dtype, op);
      CHECK(count_wrong<Type>(target.elements(), count, [&](std::int64_t i, auto value) {
              const auto combined = combine(op, element<Type>(left, i), element<Type>(right, i));
              return same(value, Type::rounded(combined));
            }) == 0);
      CHECK(target.fences_stand());
      CHECK(std::equal(right.begin(), right.end(), source.elements()));
    }
  });
}

TEST_CASE("scale multiplies, truncates and saturates") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::mt19937 random(2);
  for_each_placement([&]<class Type>(Type, std::int64_t count, std::size_t offset) {
    const Bytes before = random_elements<Type>(count, random);
    for (const double factor :
         {1.0, 0.5, -1.0, 1.0 / 3, 0.0, 2.75, 1e30, -1e30, infinity, std::nan("")}) {
      INFO("factor " << factor);
      Placed array(before, offset);
      scale(array.elements(), count, Type::dtype, factor);
      CHECK(array.fences_stand());
      if (Type::dtype == DataType::boolean) {
        CHECK(std::equal(before.begin(), before.end(), array.elements()));
        continue;
      }
      CHECK(count_wrong<Type>(array.elements(), count, [&](std::int64_t i, auto value) {
              return same(value, Type::rounded(scaled(element<Type>(before, i), factor)));
            }) == 0);
    }
  });
}

TEST_CASE("divide rounds integers towards negative infinity") {
  std::mt19937 random(3);
  for_each_placement([&]<class Type>(Type, std::int64_t count, std::size_t offset) {
    if (!is_supported(ReduceOp::average, Type::dtype)) return;
    const Bytes before = random_elements<Type>(count, random);
    for (const int ranks : {1, 2, 3, 7, 16, 1000}) {
      INFO(ranks << " ranks");
      Placed array(before, offset);
      divide(array.elements(), count, Type::dtype, ranks);
      CHECK(array.fences_stand());
      CHECK(count_wrong<Type>(array.elements(), count, [&](std::int64_t i, auto value) {
              const auto dividend = element<Type>(before, i);
              if constexpr (Type::is_sixteen_bit_float) {
                return same(value, Type::rounded(dividend / static_cast<float>(ranks)));
              } else {
                return is_quotient(value, dividend, ranks);
              }
            }) == 0);
    }
  });
}

TEST_CASE("the identity changes nothing, on either side") {
  std::mt19937 random(4);
  for_each_placement([&]<class Type>(Type, std::int64_t count, std::size_t offset) {
    const Bytes values = random_elements<Type>(count, random);
    for (const ReduceOp op : all_ops) {
      if (!is_supported(op, Type::dtype)) continue;
      INFO(name_of(op));
      Placed identity(values, offset);
      fill_identity(identity.elements(), count, Type::dtype, op);
      CHECK(identity.fences_stand());
      Placed kept(values, offset);
      reduce(kept.elements(), identity.elements(), count, Type::dtype, op);
      reduce(identity.elements(), Placed(values, 0).elements(), count, Type::dtype, op);
      const auto is_kept = [&](std::int64_t i, auto value) {
        const auto original = element<Type>(values, i);
        if constexpr (info(Type::dtype).kind == DataKind::complex) {
          // (a + bi)(1 + 0i) turns infinities into NaN and may flip the sign of a zero.
          const bool finite = std::isfinite(original.real()) && std::isfinite(original.imag());
          if (op == ReduceOp::product) return !finite || value == original;
        }
        return same(value, original);
      };
      CHECK(count_wrong<Type>(kept.elements(), count, is_kept) == 0);
      CHECK(count_wrong<Type>(identity.elements(), count, is_kept) == 0);
    }
  });
}

template <class T>
T reduced(T target, T source, DataType dtype, ReduceOp op) {
  reduce(&target, &source, 1, dtype, op);
  return target;
}

TEST_CASE("examples that can be checked by head") {
  using enum DataType;
  CHECK(reduced<std::int8_t>(100, 100, int8, ReduceOp::sum) == -56);
  CHECK(reduced<std::uint16_t>(65535, 65535, uint16, ReduceOp::product) == 1);
  CHECK(reduced<std::uint32_t>(7, 8, uint32, ReduceOp::average) == 15);
  CHECK(reduced<std::uint8_t>(2, 4, boolean, ReduceOp::bit_and) == 1);
  CHECK(reduced<std::uint8_t>(2, 4, boolean, ReduceOp::bit_xor) == 0);
  CHECK(std::isnan(reduced(1.0F, std::nanf(""), float32, ReduceOp::min)));
  CHECK(std::isnan(reduced(std::nanf(""), 1.0F, float32, ReduceOp::max)));
  // 2048 and 2052 have even mantissas in float16; 2050 lies between them.
  const auto two_k = float16_format.encode(2048);
  CHECK(reduced(two_k, float16_format.encode(1), float16, ReduceOp::sum) == two_k);
  CHECK(reduced(two_k, float16_format.encode(3), float16, ReduceOp::sum) ==
        float16_format.encode(2052));

  std::array<std::int32_t, 4> integers{7, -7, 2'000'000'000, -2'000'000'000};
  divide(integers.data(), 2, int32, 2);
  scale(&integers[2], 2, int32, 1.5);
  CHECK(integers == std::array<std::int32_t, 4>{3, -4, 2'147'483'647, -2'147'483'648});
  std::array<std::int64_t, 2> kept{9'007'199'254'740'993, -9'007'199'254'740'993};  // not a double
  scale(kept.data(), 2, int64, 1.0);
  CHECK(kept[0] == 9'007'199'254'740'993);

  std::array<float, 2> bounds{};
  fill_identity(&bounds[0], 1, float32, ReduceOp::min);
  fill_identity(&bounds[1], 1, float32, ReduceOp::max);
  CHECK(bounds == std::array{std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity()});
  std::uint8_t truth = 0;
  fill_identity(&truth, 1, boolean, ReduceOp::bit_and);
  CHECK(truth == 1);
}

}  // namespace
}  // namespace rueda::test::reduce_test
