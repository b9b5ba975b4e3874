#include "core/signals_blocked.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <thread>

#include "unit/child_process.h"

namespace rueda::test::signals_blocked_test {

namespace {

// The exit code of a process in which a thread started under SignalsBlocked raises `signal`.
int code_of_thread_that_raises(int signal) {
  return exit_code_of([signal] {
    ::signal(signal, [](int) { ::_exit(7); });
    const SignalsBlocked blocked;
    std::thread([signal] { ::raise(signal); }).join();
  });
}

}  // namespace

TEST_CASE("signals for the application do not reach a thread of Rueda's") {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) {
    CHECK(code_of_thread_that_raises(signal) == 0);
  }
}

TEST_CASE("what a thread of Rueda's does wrong reaches the application's handler") {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
    CHECK(code_of_thread_that_raises(signal) == 7);
  }
}

}  // namespace rueda::test::signals_blocked_test
