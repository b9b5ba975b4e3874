#include "core/strings.h"

#include <catch2/catch.hpp>
#include <locale>

namespace rueda::test::strings_test {
namespace {

TEST_CASE("str concatenates what can be printed") {
  CHECK(str("rank ", 3, " of ", 4U, '!', std::string(" "), 0.5) == "rank 3 of 4! 0.5");
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
