#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "api/bindings.h"
#include "ranks/worlds_of_rank_threads.h"
#include "rueda/rueda.h"
#include "rueda/server.h"

namespace rueda::test::worlds_test {

namespace {

float sum(ProcessSet set, float value) {
  std::array<float, 3> tensor{value, value, value};
  allreduce({tensor.data(), {3}, DataType::float32}, tensor.data(),
            {.name = "sum", .op = ReduceOp::sum, .process_set = set})
      .wait();
  return tensor[2];
}

}  // namespace

TEST_CASE("a process is several ranks of a world beside its own, and has none of its own") {
  std::array<float, 3> sums{};
  with_world(3, "sums", [&](int rank, ProcessSet set) {
    sums.at(static_cast<std::size_t>(rank)) = sum(set, static_cast<float>(rank + 1));
    if (rank_in(set) != rank || ranks_of(set) != std::vector<int>{0, 1, 2}) sums[0] = -1;
  });
  CHECK(sums == std::array<float, 3>{6, 6, 6});
  CHECK_FALSE(is_initialized());
}

TEST_CASE("two threads of a rank close one table") {
  with_world(2, "tables", [](int, ProcessSet set) {
    for (int round = 0; round < 20; ++round) {
      Table table({.name = "shared", .size = 10, .process_set = set});
      const std::string failures = run_threads(2, "thread", [&](int) { table.close(); });
      expect(failures.empty(), failures);
    }
  });
}

TEST_CASE("closing with a cause fails what waits on all ranks, which are told the cause") {
  std::array<std::string, 2> errors;
  with_world(2, "abort", [&](int rank, ProcessSet set) {
    sum(set, 1);
    if (rank == 1) return close_world(set, "enough of it");
    try {
      sum(set, 1);
    } catch (const PeerLostError& error) {
      errors[0] = error.what();
    }
    try {
      close_world(set);
      sum(set, 1);
    } catch (const ShutdownError& error) {
      errors[1] = error.what();
    }
  });
  CHECK_THAT(errors[0], Catch::Contains("enough of it"));
  CHECK_THAT(errors[1], Catch::Contains("has been closed"));
}

TEST_CASE(
    "a world of one rank needs no address, numbers are not used again, and there is a limit") {
  std::vector<ProcessSet> open;
  for (int i = 0; i < world_limit; ++i) open.push_back(open_world({}));
  CHECK(sum(open.back(), 2) == 2);
  CHECK_THROWS_AS(open_world({}), UnsupportedError);
  const ProcessSet closed = open.back();
  close_world(closed);
  close_world(closed, "a second time, which does nothing");
  open.back() = open_world({});
  CHECK(open.back().id != closed.id);
  CHECK(sum(open.back(), 2) == 2);
  CHECK_THROWS_AS(sum(closed, 2), ShutdownError);
  for (const ProcessSet set : open) close_world(set);
}

TEST_CASE("ranks that do not come in time are an error") {
  WorldMeeting late = meeting_of_threads(1, 2, "late");
  late.options = {{"init_timeout", "0.2"}};
  CHECK_THROWS_AS(open_world(late), InitializationError);
}

}  // namespace rueda::test::worlds_test
