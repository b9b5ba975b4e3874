#include "core/start_thread.h"

#include <sys/resource.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "unit/child_process.h"

namespace rueda::test::start_thread_test {
namespace {

TEST_CASE("a thread that is started does its work") {
  bool done = false;
  std::thread thread;
  REQUIRE(start_thread(thread, [&] { done = true; }).ok());
  thread.join();
  CHECK(done);
}

TEST_CASE("a thread that the system refuses is an error that says which limit to raise") {
  const int code = exit_code_of([] {
    constexpr uid_t somebody = 54321;  // root is exempt from the limit
    if (::geteuid() == 0 && ::setuid(somebody) != 0) throw std::runtime_error("setuid");
    const rlimit none{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &none) != 0) throw std::runtime_error("setrlimit");
    std::thread thread;
    const Status status = start_thread(thread, [] {});
    if (status.ok()) {
      thread.join();
      throw std::runtime_error("it was started");
    }
    const bool tells = status.to_string().find("processes (ulimit -u)") != std::string::npos &&
                       status.to_string().find("memory (ulimit -v)") != std::string::npos;
    if (status.code() != ErrorCode::initialization || !tells) {
      throw std::runtime_error(status.to_string());
    }
  });
  CHECK(code == 0);
}

}  // namespace
}  // namespace rueda::test::start_thread_test
