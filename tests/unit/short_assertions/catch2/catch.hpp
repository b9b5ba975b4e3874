// Catch2 as the sanitizers' builds include it. CHECK and REQUIRE turn what they are given into a
// bool where they stand, and hand it to one function: Catch takes the expression to pieces, and has
// the compiler read it three times, which is a third of the time that a file of tests takes to
// compile with checks inserted. What is lost is the two values of a comparison that fails; the
// release build prints them.
#pragma once

#include_next <catch2/catch.hpp>

namespace rueda::test {

// Told to Catch where it does not hold (unit/test_main.cpp); what holds is not counted.
void expect_of_catch(bool holds, const char* macro, const char* expression,
                     const Catch::SourceLineInfo& line,
                     Catch::ResultDisposition::Flags disposition);

}  // namespace rueda::test

#undef INTERNAL_CATCH_TEST
#define INTERNAL_CATCH_TEST(macro, disposition, ...)                                  \
  ::rueda::test::expect_of_catch(static_cast<bool>(__VA_ARGS__), macro, #__VA_ARGS__, \
                                 CATCH_INTERNAL_LINEINFO, disposition)
