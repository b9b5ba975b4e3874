#include "core/status.h"

#include <catch2/catch.hpp>
#include <memory>
#include <type_traits>

namespace rueda::test::status_test {
namespace {

// Every error code.
template <class Check>
void for_each_error(const Check& check) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::internal); ++code) {
    check(static_cast<ErrorCode>(code));
  }
}

TEST_CASE("a default status is a success") {
  const Status status;
  CHECK(status.ok());
  // A Status converted to bool would be easy to misread in a condition.
  STATIC_REQUIRE_FALSE(std::is_constructible_v<bool, Status>);
  CHECK(status.code() == ErrorCode::ok);
  CHECK(status.message().empty());
  CHECK(status.peer() == -1);
  CHECK(status.to_string() == "ok");
  CHECK_NOTHROW(status.throw_if_error());
}

TEST_CASE("an error carries code, message and peer") {
  const Status status(ErrorCode::peer_lost, "rank 3 is gone", 3);
  CHECK_FALSE(status.ok());
  CHECK(status.code() == ErrorCode::peer_lost);
  CHECK(status.message() == "rank 3 is gone");
  CHECK(status.peer() == 3);
  CHECK(Status(ErrorCode::timeout, "late").peer() == -1);
}

TEST_CASE("causes are chained, outermost first, and none is lost") {
  const Status inner(ErrorCode::transport, "connection reset", 2);
  const Status middle = Status(ErrorCode::peer_lost, "rank 2 is gone", 2).because(inner);
  const Status outer = Status(ErrorCode::shutdown, "allreduce 'w' was given up").because(middle);
  CHECK(outer.to_string() == "allreduce 'w' was given up: rank 2 is gone: connection reset");
  CHECK(outer.code() == ErrorCode::shutdown);
  CHECK(outer.message() == "allreduce 'w' was given up");
  CHECK(outer.peer() == -1);

  const Status more = middle.because(Status(ErrorCode::internal, "host-b lost power"));
  CHECK(more.to_string() == "rank 2 is gone: connection reset: host-b lost power");
  CHECK(more.code() == ErrorCode::peer_lost);
  CHECK(more.peer() == 2);
  // The shared causes are unchanged.
  CHECK(middle.to_string() == "rank 2 is gone: connection reset");
  CHECK(inner.to_string() == "connection reset");
}

TEST_CASE("the details of the outermost link that has any are those of the error") {
  const ErrorDetails shape{.tensor = "w", .field = "shape", .values = {"[3]", "[4]"}};
  const Status inner =
      Status(ErrorCode::mismatch, "shapes differ", 1, shape)
          .because(Status(ErrorCode::timeout, "late", -1, {.reason = ErrorReason::deadline}));
  const Status outer = Status(ErrorCode::shutdown, "given up").because(inner);
  CHECK(inner.details() == shape);
  CHECK(outer.details() == shape);
  CHECK(Status().details() == ErrorDetails{});
  CHECK(Status(ErrorCode::internal, "bug").details() == ErrorDetails{});
  try {
    outer.throw_if_error();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.details() == shape);
    STATIC_REQUIRE(std::is_nothrow_copy_constructible_v<ShutdownError>);
  }
}

TEST_CASE("a success neither causes nor is caused") {
  const Status error =
      Status(ErrorCode::timeout, "late").because(Status(ErrorCode::internal, "bug"));
  CHECK(error.because(Status()).to_string() == "late: bug");
  CHECK(Status().because(error).to_string() == "late: bug");
  CHECK(Status().because(Status()).ok());
}

template <ErrorCode code>
void check_thrown_class() {
  CAPTURE(name_of(code));
  const Status status = Status(code, "outer", 4).because(Status(ErrorCode::internal, "inner"));
  try {
    status.throw_if_error();
    FAIL("nothing was thrown");
  } catch (const ErrorOf<code>& error) {
    CHECK(error.code() == code);
    CHECK(error.peer() == 4);
    CHECK(std::string(error.what()) == "outer: inner");
  }
}

TEST_CASE("each code throws the class of its own") {
  check_thrown_class<ErrorCode::invalid_argument>();
  check_thrown_class<ErrorCode::unsupported>();
  check_thrown_class<ErrorCode::mismatch>();
  check_thrown_class<ErrorCode::duplicate_name>();
  check_thrown_class<ErrorCode::stalled>();
  check_thrown_class<ErrorCode::timeout>();
  check_thrown_class<ErrorCode::peer_lost>();
  check_thrown_class<ErrorCode::shutdown>();
  check_thrown_class<ErrorCode::not_initialized>();
  check_thrown_class<ErrorCode::initialization>();
  check_thrown_class<ErrorCode::transport>();
  check_thrown_class<ErrorCode::internal>();
}

TEST_CASE("every code has a name and throws something that is an Error with this code") {
  for_each_error([](ErrorCode code) {
    CHECK(name_of(code) != "unknown");
    try {
      Status(code, "message").throw_if_error();
      FAIL("nothing was thrown");
    } catch (const Error& error) {
      CHECK(error.code() == code);
      CHECK(typeid(error) != typeid(Error));
    }
  });
}

TEST_CASE("an Expected holds a value or the reason why there is none") {
  Expected<std::unique_ptr<int>> value = std::make_unique<int>(5);
  REQUIRE(value.ok());
  CHECK(value.status().ok());
  CHECK(**value == 5);
  const std::unique_ptr<int> moved = *std::move(value);
  CHECK(*moved == 5);

  const Expected<int> none = Status(ErrorCode::unsupported, "no");
  CHECK_FALSE(none.ok());
  CHECK_FALSE(static_cast<bool>(none));
  CHECK(none.status().code() == ErrorCode::unsupported);
}

}  // namespace
}  // namespace rueda::test::status_test
