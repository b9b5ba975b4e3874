// Pending operations by name.
#include <algorithm>
#include <catch2/catch.hpp>

#include "coordinator/set_negotiation.h"

namespace rueda::test::pending_operations_test {

namespace {

Submission submission_of(const std::string& name, const std::string& group = {}) {
  Submission submission;
  submission.request.name = name;
  submission.request.group = group;
  submission.handle = std::make_shared<HandleState>();
  return submission;
}

}  // namespace

TEST_CASE("an operation is pending under its name until it is taken") {
  PendingOperations pending;
  pending.add(submission_of("a"));
  pending.add(submission_of("b", "g"));
  Submission on_gpu = submission_of("c", "g");
  on_gpu.request.on_gpu = true;
  pending.add(std::move(on_gpu));
  pending.add(std::move(refusal_of("d", Status(ErrorCode::mismatch, "no")).front()));
  CHECK(pending.has_any_on_gpus());
  CHECK(pending.is_refused("d"));
  CHECK_FALSE(pending.is_refused("a"));
  CHECK(pending.descriptions() ==
        std::set<std::string>{"allreduce of 'a'", "allreduce of 'b'", "allreduce of 'c'"});
  Request failed;
  failed.name = "b";
  failed.group = "g";
  auto names = pending.names_of(failed);
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"b", "c"});
  failed.group = "";
  CHECK(pending.names_of(failed) == std::vector<std::string>{"b"});
  REQUIRE(pending.take("c"));
  CHECK_FALSE(pending.has_any_on_gpus());
  CHECK_FALSE(pending.take("c"));
  CHECK(pending.find("c") == nullptr);
  CHECK(pending.take_all().size() == 3);
  CHECK(pending.empty());
}

}  // namespace rueda::test::pending_operations_test
