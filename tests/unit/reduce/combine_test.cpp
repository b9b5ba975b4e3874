// Every kernel of every instruction set of this CPU, checked against unit/reduce_reference.h and,
// bit for bit, against the simplest instruction set.
#include "reduce/combine.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "effort.h"
#include "reduce/instruction_set.h"
#include "reduce/reduce.h"
#include "unit/reduce/reduce_reference.h"

namespace rueda::test::combine_test {
namespace {

// Adjacent arrays, each at its own offset from a 64-byte boundary, surrounded by guard bytes.
class PlacedArrays {
 public:
  PlacedArrays(const std::vector<Bytes>& arrays, const std::vector<std::size_t>& offsets)
      : size_(arrays.front().size()), spacing_((size_ / 64 + 4) * 64) {
    memory_.assign(spacing_ * arrays.size() + 64, fence);
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(memory_.data()) % 64;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      starts_.push_back(64 - misaligned + i * spacing_ + 64 + offsets[i % offsets.size()]);
      std::copy(arrays[i].begin(), arrays[i].end(), at(i));
    }
  }

  [[nodiscard]] std::byte* at(std::size_t array) { return memory_.data() + starts_[array]; }
  [[nodiscard]] Bytes contents(std::size_t array) { return {at(array), at(array) + size_}; }

  [[nodiscard]] bool fences_stand() {
    Bytes rest = memory_;
    for (const std::size_t start : starts_) {
      std::fill_n(rest.begin() + static_cast<std::ptrdiff_t>(start), size_, fence);
    }
    return std::all_of(rest.begin(), rest.end(), [](std::byte byte) { return byte == fence; });
  }

 private:
  static constexpr std::byte fence{0xa5};
  std::size_t size_;
  std::size_t spacing_;
  Bytes memory_;
  std::vector<std::size_t> starts_;
};

struct Call {
  Combination combination;
  std::size_t targets = 1;
  bool in_place = false;  // the targets are the first inputs
  std::vector<std::size_t> offsets{0};
  Stores stores = Stores::cached;
};

// Returns the targets' contents and checks that nothing else has changed.
std::vector<Bytes> combined(const KernelTable& kernels, const Call& call,
                            const std::vector<Bytes>& inputs) {
  std::vector<Bytes> arrays = inputs;
  if (!call.in_place) arrays.resize(inputs.size() + call.targets, Bytes(inputs[0].size()));
  PlacedArrays placed(arrays, call.offsets);
  const std::size_t first_target = call.in_place ? 0 : inputs.size();
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (std::size_t k = 0; k < inputs.size(); ++k) from.push_back(placed.at(k));
  for (std::size_t t = 0; t < call.targets; ++t) to.push_back(placed.at(first_target + t));
  const auto count = static_cast<std::int64_t>(inputs[0].size() / size_of(call.combination.dtype));
  Combiner(call.combination, kernels)(to, from, count, call.stores);
  CHECK(placed.fences_stand());
  for (std::size_t k = call.in_place ? call.targets : 0; k < inputs.size(); ++k) {
    CHECK(placed.contents(k) == inputs[k]);
  }
  std::vector<Bytes> results;
  for (std::size_t t = 0; t < call.targets; ++t) {
    results.push_back(placed.contents(first_target + t));
  }
  return results;
}

template <class Type>
std::vector<Bytes> random_inputs(std::size_t inputs, std::int64_t count, std::mt19937& random) {
  std::vector<Bytes> arrays;
  for (std::size_t k = 0; k < inputs; ++k) arrays.push_back(random_elements<Type>(count, random));
  return arrays;
}

// Counts elements of `result` that differ from the inputs scaled, combined, divided and scaled;
// 16-bit floats are rounded only at the end.
template <class Type>
std::int64_t count_wrong(const Combination& combination, const Bytes& result,
                         const std::vector<Bytes>& inputs) {
  using T = typename Type::Value;
  std::int64_t wrong = 0;
  for (std::size_t at = 0; at < result.size(); at += Type::size) {
    T expected = scaled(Type::decode(&inputs[0][at]), combination.prescale);
    for (std::size_t k = 1; k < inputs.size(); ++k) {
      expected = combine(combination.op, expected,
                         scaled(Type::decode(&inputs[k][at]), combination.prescale));
    }
    if constexpr (!std::is_same_v<T, bool>) {
      if constexpr (std::is_integral_v<T>) {
        const auto divisor = static_cast<T>(combination.divisor);
        const T quotient = static_cast<T>(expected / divisor);
        const bool rounds_up = std::is_signed_v<T> && expected < 0 && expected % divisor != 0;
        expected = static_cast<T>(quotient - (rounds_up ? 1 : 0));
      } else if constexpr (std::is_floating_point_v<T>) {
        expected /= static_cast<T>(combination.divisor);
      } else {
        using Part = typename T::value_type;
        const auto divisor = static_cast<Part>(combination.divisor);
        expected = {expected.real() / divisor, expected.imag() / divisor};
      }
    }
    expected = scaled(expected, combination.postscale);
    if (Type::dtype == DataType::boolean && result[at] > std::byte{1}) ++wrong;
    if (!same(Type::decode(&result[at]), Type::rounded(expected))) ++wrong;
  }
  return wrong;
}

// Checks that all targets hold the same, correct bits on all instruction sets.
template <class Type>
void check(const Call& call, const std::vector<Bytes>& inputs) {
  const std::size_t elements = inputs[0].size() / Type::size;
  INFO(name_of(call.combination.dtype)
       << " " << name_of(call.combination.op) << ", " << elements << " elements, " << inputs.size()
       << " inputs, " << call.targets << " targets" << (call.in_place ? " in place" : "")
       << ", offset " << call.offsets.front()
       << (call.stores == Stores::streaming ? ", streaming" : ""));
  const auto supported = supported_kernels();
  const std::vector<Bytes> expected = combined(*supported.front(), call, inputs);
  CHECK(count_wrong<Type>(call.combination, expected.front(), inputs) == 0);
  for (const KernelTable* kernels : supported) {
    INFO(kernels->name);
    for (const Bytes& result : combined(*kernels, call, inputs)) {
      const auto different = std::mismatch(result.begin(), result.end(), expected.front().begin());
      INFO("first different byte: " << different.first - result.begin());
      CHECK((different.first == result.end()));
    }
  }
}

template <class Check>
void for_each_operation(const Check& check_operation) {
  for_each_type([&]<class Type>(Type type) {
    for (const ReduceOp op : all_ops) {
      if (is_supported(op, Type::dtype)) check_operation(type, op);
    }
  });
}

constexpr std::array both_stores{Stores::cached, Stores::streaming};

TEST_CASE("any number of inputs into any number of targets") {
  std::mt19937 random(1);
  for_each_operation([&]<class Type>(Type, ReduceOp op) {
    for (std::size_t inputs = 1; inputs <= 5; ++inputs) {
      for (const std::int64_t count : {0, 1, 14, 67, 1031}) {
        const auto arrays = random_inputs<Type>(inputs, count, random);
        for (const Stores stores : both_stores) {
          for (const std::size_t targets : {std::size_t{1}, std::size_t{2}, inputs}) {
            check<Type>({{Type::dtype, op}, targets, false, {0}, stores}, arrays);
            if (targets > inputs) continue;
            check<Type>({{Type::dtype, op}, targets, true, {Type::size}, stores}, arrays);
          }
        }
      }
    }
  });
}

TEST_CASE("without an input the targets get what the operation ignores, not scaled") {
  const ReduceOp op = GENERATE(ReduceOp::sum, ReduceOp::min, ReduceOp::product);
  Combination combination{.dtype = DataType::float32, .op = op};
  combination.postscale = 3;
  std::vector<float> first(5, 7);
  std::vector<float> second(5, 7);
  std::vector<float> expected(5);
  fill_identity(expected.data(), 5, DataType::float32, op);
  const std::array<std::byte*, 2> targets{reinterpret_cast<std::byte*>(first.data()),
                                          reinterpret_cast<std::byte*>(second.data())};
  Combiner{combination}(targets, {}, 5, Stores::cached);
  CHECK(first == expected);
  CHECK(second == expected);
}

TEST_CASE("arrays at any address, alike and not") {
  std::mt19937 random(2);
  for_each_operation([&]<class Type>(Type, ReduceOp op) {
    const std::vector<std::vector<std::size_t>> placements{
        {1}, {Type::size}, {64 - Type::size}, {0, 1, 33}, {Type::size, 0, 0, 3 * Type::size}};
    for (const auto& offsets : placements) {
      for (const std::size_t inputs : {2, 3}) {
        const auto arrays = random_inputs<Type>(inputs, effort(5003, 1031), random);
        for (const Stores stores : both_stores) {
          for (const std::size_t targets : {1, 2}) {
            check<Type>({{Type::dtype, op}, targets, false, offsets, stores}, arrays);
            check<Type>({{Type::dtype, op}, targets, true, offsets, stores}, arrays);
          }
        }
      }
    }
  });
}

TEST_CASE("scaling before and after, and dividing in between") {
  std::mt19937 random(3);
  for_each_operation([&]<class Type>(Type, ReduceOp op) {
    for (const std::size_t inputs : {1, 2, 3, 5}) {
      for (const std::int64_t count : {3, effort(2111, 531)}) {
        const auto arrays = random_inputs<Type>(inputs, count, random);
        for (const double prescale : {1.0, 1.0 / 3, -2.75}) {
          for (const double postscale : {1.0, 0.7}) {
            for (const int divisor : {1, 4, 7}) {
              if (divisor != 1 && op != ReduceOp::average) continue;
              const Combination combination{Type::dtype, op, prescale, divisor, postscale};
              const Stores stores = both_stores[random() % 2];
              check<Type>({combination, 1, false, {0}, stores}, arrays);
              check<Type>({combination, std::min<std::size_t>(inputs, 2), true, {0}, stores},
                          arrays);
            }
          }
        }
      }
    }
  });
}

template <class Type>
std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> patterns(0x10000);
  std::iota(patterns.begin(), patterns.end(), std::uint16_t{0});
  return patterns;
}

Bytes bytes_of(const std::vector<std::uint16_t>& elements) {
  Bytes bytes(elements.size() * sizeof(std::uint16_t));
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

TEST_CASE("every 16-bit pattern alone, and with others") {
  for_each_type([&]<class Type>(Type) {
    if constexpr (Type::is_sixteen_bit_float) {
      const std::vector<std::uint16_t> patterns = all_patterns<Type>();
      const Bytes all = bytes_of(patterns);
      check<Type>({{Type::dtype, ReduceOp::sum}}, {all});
      check<Type>({{Type::dtype, ReduceOp::sum, 0.3}}, {all});
      const auto infinity = static_cast<std::uint16_t>(Type::format().infinity());
      const std::array<std::uint16_t, 9> others{0,
                                                0x8000,
                                                1,
                                                infinity,
                                                static_cast<std::uint16_t>(infinity | 0x8000),
                                                static_cast<std::uint16_t>(infinity - 1),
                                                Type::format().encode(1.0),
                                                Type::format().encode(-0.0625),
                                                static_cast<std::uint16_t>(infinity | 1)};
      for (const std::uint16_t other :
           std::span(others).first(effort(others.size(), others.size() / 3))) {
        const Bytes same_everywhere = bytes_of(std::vector(patterns.size(), other));
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
          check<Type>({{Type::dtype, op}}, {all, same_everywhere});
          check<Type>({{Type::dtype, op}, 1, true}, {same_everywhere, all});
        }
      }
    }
  });
}

TEST_CASE("16-bit floats are rounded once, however many are added") {
  const auto check_format = [](DataType dtype, const SixteenBitFormat& format) {
    // 1 plus twice half a unit in the last place: rounding after each addition would lose both.
    const double half_unit = std::ldexp(1.0, -format.mantissa_bits - 1);
    const Bytes one = bytes_of({format.encode(1.0)});
    const Bytes half = bytes_of({format.encode(half_unit)});
    for (const KernelTable* kernels : supported_kernels()) {
      const Call call{{dtype, ReduceOp::sum}};
      CHECK(combined(*kernels, call, {one, half, half}).front() ==
            bytes_of({format.encode(1.0 + 2 * half_unit)}));
    }
  };
  check_format(DataType::float16, float16_format);
  check_format(DataType::bfloat16, bfloat16_format);
}

TEST_CASE("bytes are copied to any address") {
  std::mt19937 random(4);
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 255, 256, 1000, 4099}) {
    Bytes elements(bytes);
    for (std::byte& byte : elements) byte = static_cast<std::byte>(random());
    for (const std::size_t offset : {0, 1, 32, 63}) {
      const auto check_copy = [&](const auto& copy) {
        PlacedArrays placed({elements, Bytes(bytes)}, {0, offset});
        copy(placed.at(1), placed.at(0));
        CHECK(placed.contents(1) == elements);
        CHECK(placed.fences_stand());
      };
      for (const Stores stores : both_stores) {
        check_copy(
            [&](std::byte* to, const std::byte* from) { copy_bytes(to, from, bytes, stores); });
      }
      for (const KernelTable* kernels : supported_kernels()) {
        check_copy([&](std::byte* to, const std::byte* from) { kernels->stream(to, from, bytes); });
      }
    }
  }
}

TEST_CASE("the best instruction set is used, unless a simpler one is wanted") {
  const auto supported = supported_kernels();
  CHECK(&choose_kernels(supported, "") == supported.back());
  CHECK(&choose_kernels(supported, "sse9") == supported.back());
  for (const KernelTable* kernels : supported) {
    CHECK(&choose_kernels(supported, kernels->name) == kernels);
  }
  CHECK(&choose_kernels(supported.first(1), supported.back()->name) == supported.front());
  const char* wanted = std::getenv("RUEDA_INSTRUCTION_SET");
  CHECK(instruction_set() == choose_kernels(supported, wanted == nullptr ? "" : wanted).name);
}

}  // namespace
}  // namespace rueda::test::combine_test
