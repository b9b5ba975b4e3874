#include "core/clock.h"

#include <catch2/catch.hpp>
#include <limits>

namespace rueda::test::clock_test {

TEST_CASE("seconds are a time that can be waited for, whatever the number") {
  using namespace std::chrono_literals;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(seconds(1.5) == 1500ms);
  CHECK(seconds(-1.5) == -1500ms);
  CHECK(seconds(std::numeric_limits<double>::quiet_NaN()) == 0s);
  for (const double ever : {forever_seconds, 1e300, infinity}) {
    CHECK(seconds(ever) == 1'000'000'000s);
    CHECK(seconds(-ever) == -1'000'000'000s);
    CHECK(Clock::now() + seconds(ever) > Clock::now());
  }
}

}  // namespace rueda::test::clock_test
