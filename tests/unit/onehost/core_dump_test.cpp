// The core file of a rank that dies contains no memory that it shares with others.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "onehost/host_memory.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"
#include "unit/child_process.h"

namespace rueda::test::core_dump_test {

namespace {

// Counts of this process's mappings of shared files, and of those left out of core files.
struct SharedMappings {
  int all = 0;
  int left_out = 0;
};

SharedMappings shared_mappings() {
  SharedMappings found;
  std::ifstream mappings("/proc/self/smaps");
  bool is_shared = false;
  for (std::string line; std::getline(mappings, line);) {
    if (line.find("/memfd:rueda") != std::string::npos) {
      is_shared = true;
      ++found.all;
    } else if (is_shared && line.starts_with("VmFlags:")) {
      is_shared = false;
      if (line.find(" dd") != std::string::npos) ++found.left_out;
    }
  }
  return found;
}

constexpr std::size_t registered_bytes = std::size_t{256} << 20;
// Keeps a core file with all of it from filling the disk.
constexpr rlim_t max_dumped = 2 * registered_bytes;

// Why no core file would be written to the working directory; empty if one would be.
std::string why_no_core_file() {
  if (!can_limit_addresses) return "sanitizers write no core files";
  std::string pattern;
  std::getline(std::ifstream("/proc/sys/kernel/core_pattern"), pattern);
  if (!pattern.starts_with("core")) return "core files go elsewhere: " + pattern;
  rlimit limit{};
  if (::getrlimit(RLIMIT_CORE, &limit) != 0 || limit.rlim_max < max_dumped) {
    return "the length of core files is limited";
  }
  return {};
}

// A working directory for the lifetime of this object, removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "rueda-core-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("no mapping that ranks share is part of a core file") {
  InprocHub hub(2);
  run_ranks(2, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    const auto formed = HostMemory::form(*bootstrap, soon());
    expect_ok(formed.status(), "sharing memory");
    const SharedMappings found = shared_mappings();
    // The registered memory, and at least this rank's control memory.
    expect(found.all >= 2, "mappings are found");
    expect(found.left_out == found.all,
           std::to_string(found.all - found.left_out) + " mappings would be part of a core file");
  });
}

TEST_CASE("a rank that dies of a signal leaves a core file without registered memory") {
  if (const std::string why = why_no_core_file(); !why.empty()) {
    WARN("skipped: " + why);
    return;
  }
  const TemporaryFolder folder;
  const pid_t child = start_child([&] {
    const auto memory = RegisteredMemory::of_process();
    expect_ok(memory.status(), "registered memory");
    const auto tensor = memory.value()->allocate(registered_bytes);
    expect(tensor != nullptr, "a tensor");
    std::memset(tensor.get(), 1, registered_bytes);
    const rlimit limit{max_dumped, max_dumped};
    expect(::setrlimit(RLIMIT_CORE, &limit) == 0, "core files are written");
    std::filesystem::current_path(folder.path());
    ::signal(SIGSEGV, SIG_DFL);
    ::raise(SIGSEGV);
  });
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
  if (!WCOREDUMP(status)) {
    WARN("skipped: the kernel has written no core file");
    return;
  }
  std::size_t written = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    struct stat found{};
    REQUIRE(::stat(entry.path().c_str(), &found) == 0);
    written += static_cast<std::size_t>(found.st_blocks) * 512;
  }
  CHECK(written > 0);
  CHECK(written < registered_bytes / 4);
}

}  // namespace rueda::test::core_dump_test
