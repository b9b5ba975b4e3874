// Exhausted shared memory is an error, never a signal. Rueda's memory files are placed on a file
// system of a few MiB, which fails like a system that has committed all its memory
// (vm.overcommit_memory=2).
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <string>

#include "onehost/host_reduction.h"
#include "onehost/registered_memory.h"
#include "ranks/rank_threads.h"
#include "rueda/rueda.h"
#include "transport/inproc.h"
#include "unit/child_process.h"

namespace {

// Folder of the memory files; "" for the system's default.
std::string folder_of_files;

}  // namespace

// Replaces the C library's function.
extern "C" int memfd_create(const char* name, unsigned flags) noexcept {
  if (folder_of_files.empty()) {
    return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
  }
  return ::open(folder_of_files.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

namespace rueda::test::no_memory_test {

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr int cannot_mount = 77;

// Runs `body` in a child with this much shared memory. Returns true if it succeeds, or if this
// process may not mount file systems.
bool succeeds_within(std::size_t mebibytes, const std::function<void()>& body) {
  const int code = exit_code_of([&] {
    const std::string folder = std::filesystem::temp_directory_path().string();
    const std::string size = "size=" + std::to_string(mebibytes) + "m";
    const bool is_alone =
        ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    if (!is_alone || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.c_str(), "tmpfs", 0, size.c_str()) != 0) {
      ::_exit(cannot_mount);
    }
    folder_of_files = folder;
    body();
  });
  if (code == cannot_mount) WARN("skipped: this process may not mount a file system");
  return code == 0 || code == cannot_mount;
}

bool is_zero(const std::byte* bytes, std::size_t count) {
  return count == 0 || (bytes[0] == std::byte{} && std::memcmp(bytes, bytes + 1, count - 1) == 0);
}

RegisteredMemory& memory_of_process() {
  const auto memory = RegisteredMemory::of_process();
  memory.status().throw_if_error();
  return *memory.value();
}

}  // namespace

TEST_CASE("registered memory that the system does not have is refused when it is asked for") {
  CHECK(succeeds_within(32, [] {
    RegisteredMemory& memory = memory_of_process();
    expect(memory.bytes() >= 64 * mebibyte, "there are addresses enough");
    const auto kept = memory.allocate(16 * mebibyte);
    expect(kept != nullptr, "there is room for this");
    std::memset(kept.get(), 7, 16 * mebibyte);
    expect(memory.allocate(64 * mebibyte) == nullptr, "there is none for so much");
    // What the failed attempt had taken is available again.
    for (int round = 0; round < 3; ++round) {
      const auto more = memory.allocate(10 * mebibyte - 12345);
      expect(more != nullptr && is_zero(more.get(), 10 * mebibyte - 12345), "there is for less");
      std::memset(more.get(), 9, 10 * mebibyte - 12345);
    }
    std::vector<std::shared_ptr<std::byte[]>> small;
    while (auto piece = memory.allocate(mebibyte / 2)) {
      expect(is_zero(piece.get(), mebibyte / 2), "small pieces are zeros");
      std::memset(piece.get(), 3, mebibyte / 2);
      small.push_back(std::move(piece));
      expect(small.size() < 64, "small pieces come to an end as well");
    }
    for (std::size_t at = 0; at < 16 * mebibyte; at += 4096) {
      expect(kept[at] == std::byte{7}, "what is there stays as it is");
    }
    // The public function falls back to ordinary memory, of which there is enough here.
    const auto ordinary = allocate(64 * mebibyte);
    std::memset(ordinary.get(), 1, 64 * mebibyte);
    expect(!memory.offset_of(ordinary.get(), 1), "it is not registered");
  }));
}

TEST_CASE("a channel for which the system has no memory is an error") {
  CHECK(succeeds_within(8, [] {
    InprocHub hub(1);
    auto host = HostMemory::form(*hub.make_bootstrap(0), soon());
    host.status().throw_if_error();
    HostChannel channel(host.value(), {0}, 0, 1, HostChannel::WokenBy::rank);
    constexpr std::size_t count = slot_bytes / sizeof(float);
    const auto run = [&](HostChannel& in) {
      std::vector<float> tensor(count, 1);
      auto* const data = reinterpret_cast<std::byte*>(tensor.data());
      HostReduction reduction(in, {.flat_limit = slot_bytes, .registered_min = SIZE_MAX},
                              {DataType::float32, ReduceOp::sum, 1, 1, 1}, 1,
                              {{data, data, count}});
      while (!reduction.done()) static_cast<void>(reduction.advance());
      return reduction.status();
    };
    for (int round = 0; round < 4; ++round) expect_ok(run(channel), "there is room");
    // Opens channels, each with all it needs, until memory runs out: for a first page, or for the
    // data that passes through the channel.
    std::vector<std::unique_ptr<HostChannel>> channels;
    bool is_full = false;
    for (std::uint64_t key = 2; !is_full; ++key) {
      expect(key < 20, "the memory comes to an end");
      try {
        channels.push_back(std::make_unique<HostChannel>(host.value(), std::vector<int>{0}, 0, key,
                                                         HostChannel::WokenBy::rank));
        const Status status = run(*channels.back());
        is_full = !status.ok();
        expect(status.ok() || status.to_string().find("no memory is left") != std::string::npos,
               status.to_string());
      } catch (const std::bad_alloc&) {
        is_full = true;
      }
    }
    expect_ok(run(channel), "what has its memory goes on");
  }));
}

}  // namespace rueda::test::no_memory_test
