#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>

#ifdef RUEDA_SHORT_ASSERTIONS
namespace rueda::test {

void expect_of_catch(bool holds, const char* macro, const char* expression,
                     const Catch::SourceLineInfo& line,
                     Catch::ResultDisposition::Flags disposition) {
  const bool wanted = !Catch::isFalseTest(disposition);
  if (holds == wanted) return;
  Catch::AssertionHandler handler(macro, line, expression, disposition);
  handler.handleExpr(Catch::Decomposer() <= holds);
  handler.complete();
}

}  // namespace rueda::test
#endif
