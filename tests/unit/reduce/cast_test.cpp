// Conversions between floating-point types on every instruction set of this CPU, checked against
// unit/reduce_reference.h.
#include "reduce/cast.h"

#include <catch2/catch.hpp>
#include <limits>

#include "reduce/instruction_set.h"
#include "unit/reduce/reduce_reference.h"

namespace rueda::test::cast_test {
namespace {

template <class Visit>
void for_each_floating(const Visit& visit) {
  for_each_type([&]<class T>(T type) {
    if constexpr (std::is_floating_point_v<typename T::Value>) visit(type);
  });
}

// float64 becomes 16 bits via float32.
template <class To, class From>
typename To::Value expected(typename From::Value value, double factor) {
  using Wide = std::common_type_t<typename To::Value, typename From::Value>;
  const Wide product = static_cast<Wide>(value) * static_cast<Wide>(factor);
  return To::rounded(static_cast<typename To::Value>(product));
}

template <class To, class From>
int count_wrong(const Bytes& target, const Bytes& source, double factor) {
  int wrong = 0;
  for (std::size_t i = 0; i < source.size() / From::size; ++i) {
    const auto value = expected<To, From>(From::decode(&source[i * From::size]), factor);
    if (!same(To::decode(&target[i * To::size]), value)) ++wrong;
  }
  return wrong;
}

TEST_CASE("arrays of any length at any address become those of another type") {
  const auto count = GENERATE(0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 1000);
  const auto factor = GENERATE(1.0, 0.25, -3.0, 1.0 / 3);
  const auto offset = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{14});
  std::mt19937 random(static_cast<unsigned>(count) + 1);
  for_each_floating([&]<class From>(From) {
    for_each_floating([&]<class To>(To) {
      const Bytes source = random_elements<From>(count, random);
      for (const KernelTable* kernels : supported_kernels()) {
        constexpr std::byte fence{0xa5};
        Bytes from(source.size() + offset);
        std::copy(source.begin(), source.end(), from.begin() + static_cast<std::ptrdiff_t>(offset));
        Bytes to(static_cast<std::size_t>(count) * To::size + offset + 64, fence);
        cast(to.data() + offset, To::dtype, from.data() + offset, From::dtype, count, factor,
             *kernels);
        CAPTURE(kernels->name, name_of(From::dtype), name_of(To::dtype));
        for (std::size_t i = 0; i < 64; ++i) {
          if (i < offset) CHECK(to[i] == fence);
          CHECK(to[to.size() - 1 - i] == fence);
        }
        const auto begin = to.begin() + static_cast<std::ptrdiff_t>(offset);
        const Bytes target(begin, begin + static_cast<std::ptrdiff_t>(count) * To::size);
        CHECK(count_wrong<To, From>(target, source, factor) == 0);
      }
    });
  });
}

TEST_CASE("what is too large becomes infinite, and what is no number stays none") {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{65519.0F, 65520.0F, -1e30F, infinity, -infinity,
                                  NAN,      0x1p-25F, 0.0F,   -0.0F};
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  const Bytes source(bytes, bytes + values.size() * sizeof(float));
  for (const KernelTable* kernels : supported_kernels()) {
    CAPTURE(kernels->name);
    for_each_floating([&]<class To>(To) {
      Bytes target(values.size() * To::size);
      cast(target.data(), To::dtype, source.data(), DataType::float32,
           static_cast<std::int64_t>(values.size()), 1.0, *kernels);
      CHECK(count_wrong<To, Type<DataType::float32, float>>(target, source, 1.0) == 0);
    });
  }
}

}  // namespace
}  // namespace rueda::test::cast_test
