// Quoting of names in messages.
#include "core/in_quotes.h"

#include <catch2/catch.hpp>

namespace rueda::test::in_quotes_test {

TEST_CASE("a name is quoted so that no character of it ends a text or a line") {
  CHECK(in_quotes("layer.1") == "'layer.1'");
  CHECK(in_quotes("").size() == 2);
  CHECK(in_quotes(std::string("a\0b\nc\x7f", 6)) == "'a\\x00b\\x0ac\\x7f'");
  CHECK(in_quotes("\u00e9 'x'") == "'\u00e9 'x''");
}

}  // namespace rueda::test::in_quotes_test
