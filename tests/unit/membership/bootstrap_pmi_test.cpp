#include "membership/bootstrap_pmi.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "membership/launch.h"
#include "unit/child_process.h"

namespace rueda::test::bootstrap_pmi_test {

namespace {

constexpr std::string_view answers =
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"
    "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"
    "cmd=my_kvsname kvsname=kvs_0\n";

Environment with_descriptor(int fd) {
  return [fd](std::string_view name) -> std::optional<std::string> {
    if (name == "PMI_FD") return std::to_string(fd);
    if (name == "PMI_RANK") return "0";
    return std::nullopt;
  };
}

// Opens PMI, which a process can do only once, closes the manager's end, and exits.
void outlive_its_manager(std::array<int, 2> ends) {
  ::signal(SIGPIPE, SIG_DFL);
  if (::write(ends[1], answers.data(), answers.size()) < 0) std::exit(2);
  const Time deadline = Clock::now() + std::chrono::seconds(30);
  Launch launch;
  launch.kind = LaunchKind::mpi;
  const auto opened = open_pmi(launch, with_descriptor(ends[0]), deadline);
  if (!opened.ok()) std::exit(3);
  ::close(ends[1]);
  std::exit(0);  // sends a last message to the manager
}

void ask_what_is_gone(std::array<int, 2> ends) {
  ::signal(SIGPIPE, SIG_DFL);
  if (::write(ends[1], answers.data(), answers.size()) < 0) std::exit(2);
  Launch launch;
  launch.kind = LaunchKind::mpi;
  const auto opened =
      open_pmi(launch, with_descriptor(ends[0]), Clock::now() + std::chrono::seconds(30));
  if (!opened.ok()) std::exit(3);
  ::close(ends[1]);
  std::exit(opened.value()->put("key", "value").ok() ? 4 : 0);
}

}  // namespace

TEST_CASE("a process manager that is gone does not end its ranks by a signal") {
  std::fflush(nullptr);
  for (const auto& act : {outlive_its_manager, ask_what_is_gone}) {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    const pid_t child = start_child([&] { act(ends); });
    ::close(ends[1]);
    CHECK(exit_code_of_child(child) == 0);
    ::close(ends[0]);
  }
}

TEST_CASE("nothing is written to what is no process manager") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  Launch launch;
  launch.kind = LaunchKind::mpi;
  launch.launcher = "srun";
  launch.size = 2;
  for (const int fd : {::fileno(file), 12345}) {
    const auto opened =
        open_pmi(launch, with_descriptor(fd), Clock::now() + std::chrono::seconds(30));
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.status().to_string().find("is not a connection to a process manager") !=
          std::string::npos);
  }
  CHECK(std::fseek(file, 0, SEEK_END) == 0);
  CHECK(std::ftell(file) == 0);
  std::fclose(file);
}

}  // namespace rueda::test::bootstrap_pmi_test
