// Whether the agent that started a rank is still running.
#include "membership/starter.h"

#include <sys/prctl.h>

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unit/child_process.h"

namespace rueda::test::starter_test {

TEST_CASE("what has become of a rank's parent tells whether its agent has ended") {
  const std::string agent("/usr/bin/python3\0/usr/bin/torchrun\0--nnodes\0", 44);
  const std::string init("/sbin/init\0splash\0", 18);
  const std::string reaper("/usr/lib/systemd/systemd\0--user\0", 32);
  // Process 5, which loaded the library itself as a child of `noted`.
  const auto of = [](std::vector<int> line, int noted, bool leads, std::string_view parent,
                     std::string_view program = {}) {
    return has_lost_agent({std::move(line), {5, noted, true}, leads, parent, program});
  };
  CHECK_FALSE(of({5, 7, 1}, 7, true, agent));
  CHECK(of({5, 1}, 7, true, init));
  CHECK(of({5, 8, 1}, 7, false, agent));  // even if another agent adopted it
  // The agent ended before the library was loaded: detected only in its direct children.
  CHECK(of({5, 1}, 1, true, init));
  CHECK(of({5, 9, 1}, 9, true, reaper));
  CHECK_FALSE(of({5, 1}, 1, false, init));
  CHECK_FALSE(of({5, 1}, 1, true, agent));  // the agent is process 1 of a container
  CHECK_FALSE(of({5, 1}, 1, true, "torchrun"));
  CHECK_FALSE(of({5, 9, 1}, 9, true, "ray::train()", "/usr/bin/python3.11"));
  CHECK(of({5, 9, 1}, 9, true, reaper, "/usr/lib/systemd/systemd"));
  CHECK(of({5, 9, 1}, 9, true, "/torch/bin/tini", "/python/bin/tini"));
  CHECK_FALSE(of({5, 1}, 1, true, ""));
  CHECK_FALSE(of({5, 0}, 0, true, ""));  // its parent is outside the container
}

TEST_CASE("a fork of a rank, or of an agent, has lost its agent when the line to it is cut") {
  const auto of = [](std::vector<int> line, bool is_rank) {
    return has_lost_agent({std::move(line), {5, 7, is_rank}, false, "/sbin/init"});
  };
  // 7 is the agent of 5.
  CHECK_FALSE(of({4, 5, 7, 1}, true));
  CHECK_FALSE(of({3, 4, 5, 7, 1}, true));
  CHECK(of({4, 5, 1}, true));
  CHECK(of({3, 4, 5, 6, 1}, true));
  // 5 is the agent: its own parent may end before it.
  CHECK_FALSE(of({4, 5, 1}, false));
  // Either way, 5 has ended, or the process that it forked.
  CHECK(of({4, 1}, false));
  CHECK(of({3, 2, 1}, true));
  // A process that is not visible may still run.
  CHECK_FALSE(of({4, 0}, true));
  CHECK_FALSE(of({4, 5, 0}, true));
}

TEST_CASE("a rank whose agent has ended before it has loaded the library has lost it") {
  // The orphan is adopted by this program, which is no agent.
  REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  const pid_t agent = start_child([] {
    const pid_t own = ::getpid();
    start_child([own] {
      ::setsid();
      while (::getppid() == own) ::usleep(1000);
      if (!has_lost_agent()) throw std::runtime_error("it has not noticed");
    });
  });
  REQUIRE(exit_code_of_child(agent) == 0);
  int status = -1;
  CHECK(::waitpid(-1, &status, 0) > 0);
  CHECK(status == 0);
  REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
}

}  // namespace rueda::test::starter_test
