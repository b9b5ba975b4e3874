#include "core/strings.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>

namespace rueda::test::strings_test {
namespace {

template <class Part>
std::string streamed(const Part& part) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << part;
  return out.str();
}

template <class Number>
void check_extremes() {
  using Limits = std::numeric_limits<Number>;
  for (const Number number : {Limits::min(), Limits::max(), Number{0}, Number{1}}) {
    CHECK(str(number) == streamed(number));
  }
}

enum Unscoped : std::uint8_t { three = 3 };

TEST_CASE("str concatenates what can be printed") {
  CHECK(str("rank ", 3, " of ", 4U, '!', std::string(" "), 0.5) == "rank 3 of 4! 0.5");
}

TEST_CASE("str writes each part as a stream does") {
  check_extremes<short>();
  check_extremes<unsigned short>();
  check_extremes<int>();
  check_extremes<unsigned>();
  check_extremes<long>();
  check_extremes<unsigned long>();
  check_extremes<long long>();
  check_extremes<unsigned long long>();
  check_extremes<float>();
  check_extremes<double>();
  check_extremes<signed char>();
  check_extremes<unsigned char>();
  CHECK(str(true, false) == "10");
  CHECK(str(three, 0.1, 1e300) == streamed(three) + "0.11e+300");
}

TEST_CASE("str takes texts whole") {
  using namespace std::string_literals;
  CHECK(str().empty());
  CHECK(str("a\0b"s, std::string_view("\0", 1), "c", 1000) == "a\0b\0c1000"s);
}

TEST_CASE("str does not follow the application's locale") {
  struct Grouping : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouping));
  const std::string text = str(1234567, " ", 0.5);
  std::locale::global(before);
  CHECK(text == "1234567 0.5");
}

TEST_CASE("ranks are described as people write them") {
  CHECK(describe_ranks({}) == "no rank");
  CHECK(describe_ranks({3}) == "rank 3");
  CHECK(describe_ranks({0, 2}) == "ranks 0 and 2");
  CHECK(describe_ranks({0, 2, 5}) == "ranks 0, 2 and 5");
  CHECK(describe_ranks({0, 1}) == "ranks 0 and 1");
  CHECK(describe_ranks({0, 1, 2}) == "ranks 0-2");
  CHECK(describe_ranks({0, 1, 2, 3, 4, 5, 6, 9}) == "ranks 0-6 and 9");
  CHECK(describe_ranks({1, 3, 4, 7, 8, 9, 11}) == "ranks 1, 3, 4, 7-9 and 11");
}

}  // namespace
}  // namespace rueda::test::strings_test
