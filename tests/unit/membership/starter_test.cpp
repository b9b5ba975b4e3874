// Whether the agent that has started a rank is there still.
#include "membership/starter.h"

#include <sys/prctl.h>

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>

#include "unit/child_process.h"

namespace rueda::test::starter_test {

TEST_CASE("what has become of a rank's parent tells whether its agent has ended") {
  const std::string agent("/usr/bin/python3\0/usr/bin/torchrun\0--nnodes\0", 44);
  const std::string init("/sbin/init\0splash\0", 18);
  const std::string reaper("/usr/lib/systemd/systemd\0--user\0", 32);
  CHECK_FALSE(has_lost_agent({7, 7, true, agent}));
  CHECK(has_lost_agent({1, 7, true, init}));
  CHECK(has_lost_agent({8, 7, false, agent}));  // whatever has taken it over
  // Before anything was noted: only of a process that an agent has started itself.
  CHECK(has_lost_agent({1, 1, true, init}));
  CHECK(has_lost_agent({9, 9, true, reaper}));
  CHECK_FALSE(has_lost_agent({1, 1, false, init}));
  CHECK_FALSE(has_lost_agent({1, 1, true, agent}));  // of a container
  CHECK_FALSE(has_lost_agent({1, 1, true, "torchrun"}));
  CHECK_FALSE(has_lost_agent({9, 9, true, "ray::train()", "/usr/bin/python3.11"}));
  CHECK(has_lost_agent({9, 9, true, reaper, "/usr/lib/systemd/systemd"}));
  CHECK(has_lost_agent({9, 9, true, "/torch/bin/tini", "/python/bin/tini"}));
  CHECK_FALSE(has_lost_agent({1, 1, true, ""}));
  CHECK_FALSE(has_lost_agent({0, 0, true, ""}));  // its parent is outside of the container
  // Of a fork of what has loaded the library.
  CHECK_FALSE(has_lost_agent({7, 0, false, init}));
}

TEST_CASE("a rank whose agent has ended before it has loaded the library has lost it") {
  // The orphan's new parent is this program, which is no agent.
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
