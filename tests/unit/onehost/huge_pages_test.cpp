#include "onehost/huge_pages.h"

#include <sys/mman.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "onehost/shared_mapping.h"

namespace rueda::test::huge_pages_test {
namespace {

// Ordinary memory that begins `offset` bytes after a huge-page boundary, with unmapped memory on
// both sides.
class OrdinaryMemory {
 public:
  explicit OrdinaryMemory(std::size_t bytes, std::size_t offset = 0)
      : reserved_bytes_(bytes + offset + 3 * huge_page) {
    reserved_ = ::mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(reserved_ != MAP_FAILED);
    const auto place = reinterpret_cast<std::uint64_t>(reserved_) + huge_page;
    auto* const begin = reinterpret_cast<std::byte*>(place / huge_page * huge_page + offset);
    REQUIRE(::mprotect(begin, bytes, PROT_READ | PROT_WRITE) == 0);
    data_ = begin;
  }
  ~OrdinaryMemory() { ::munmap(reserved_, reserved_bytes_); }
  OrdinaryMemory(const OrdinaryMemory&) = delete;
  OrdinaryMemory& operator=(const OrdinaryMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::size_t reserved_bytes_;
  void* reserved_;
  std::byte* data_;
};

// The AnonHugePages of the mapping that holds the address, in bytes.
std::size_t huge_bytes_at(const std::byte* address) {
  std::ifstream mappings("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uint64_t>(address);
  bool is_it = false;
  for (std::string line; std::getline(mappings, line);) {
    unsigned long long begin = 0;
    unsigned long long end = 0;
    unsigned long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      is_it = begin <= wanted && wanted < end;
    } else if (is_it && std::sscanf(line.c_str(), "AnonHugePages: %llu kB", &kilobytes) == 1) {
      return kilobytes * 1024;
    }
  }
  return 0;
}

// Fills the memory with reproducible random bytes.
void fill(std::byte* memory, std::size_t bytes) {
  std::mt19937_64 random(bytes);
  for (std::size_t at = 0; at + sizeof(std::uint64_t) <= bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(memory + at, &word, sizeof word);
  }
}

TEST_CASE("an ordinary tensor is put onto huge pages, and keeps its contents") {
  constexpr std::size_t bytes = 4 * huge_page;
  const OrdinaryMemory memory(bytes);
  fill(memory.data(), bytes);
  const std::vector<std::byte> before(memory.data(), memory.data() + bytes);
  const std::size_t gained = put_tensor_on_huge_pages(memory.data(), bytes);
  INFO("kernels before 6.1 grant nothing");
  CHECK((gained == 0 || gained == bytes));
  CHECK(huge_bytes_at(memory.data()) == gained);
  CHECK(put_tensor_on_huge_pages(memory.data(), bytes) == gained);
  CHECK(std::memcmp(memory.data(), before.data(), bytes) == 0);
}

TEST_CASE("tensors of any size and place keep their contents, and nothing else is touched") {
  const std::size_t offset = GENERATE(0, 64, 4096, 1 << 20, (2 << 20) - 64);
  const std::size_t bytes =
      GENERATE(0, 1, 4096, 1 << 20, (1 << 20) + 1, 2 << 20, (3 << 20) + 5, 5 << 20);
  CAPTURE(offset, bytes);
  // The mapping ends with the tensor's last page: access beyond it would fault.
  const std::size_t whole_offset = offset / 4096 * 4096;
  const OrdinaryMemory memory(bytes + 2 * 4096, whole_offset);
  std::byte* const tensor = memory.data() + (offset - whole_offset);
  fill(tensor, bytes);
  const std::vector<std::byte> before(tensor, tensor + bytes);
  const std::size_t gained = put_tensor_on_huge_pages(tensor, bytes);
  CHECK(gained % huge_page == 0);
  CHECK(gained <= bytes + huge_page);
  CHECK(huge_bytes_at(tensor) == gained);
  CHECK((bytes == 0 || std::memcmp(tensor, before.data(), bytes) == 0));
}

TEST_CASE("memory that is not there is left alone") {
  const OrdinaryMemory untouched(2 * huge_page);
  CHECK(put_tensor_on_huge_pages(untouched.data(), 2 * huge_page) ==
        huge_bytes_at(untouched.data()));
  const OrdinaryMemory gone(2 * huge_page);
  REQUIRE(::munmap(gone.data(), 2 * huge_page) == 0);
  CHECK(put_tensor_on_huge_pages(gone.data(), 2 * huge_page) == 0);
}

TEST_CASE("a tensor takes the page that it shares with others only where half of it is in use") {
  constexpr std::size_t bytes = huge_page / 8;
  const bool is_used = GENERATE(false, true);
  const OrdinaryMemory memory(huge_page);
  fill(memory.data() + huge_page / 2, bytes);
  if (is_used) fill(memory.data(), huge_page / 2);
  const std::size_t gained = put_tensor_on_huge_pages(memory.data() + huge_page / 2, bytes);
  CHECK((gained == 0 || (is_used && gained == huge_page)));
  CHECK(huge_bytes_at(memory.data()) == gained);
}

TEST_CASE("threads write a tensor while it is put onto huge pages") {
  constexpr std::size_t bytes = 2 * huge_page;
  const OrdinaryMemory memory(bytes);
  auto* const words = reinterpret_cast<std::atomic<std::uint64_t>*>(memory.data());
  constexpr std::size_t stride = 512;  // one word per small page
  constexpr int rounds = 40;
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        for (std::size_t at = 0; at < bytes / sizeof *words; at += stride) words[at].fetch_add(1);
        put_tensor_on_huge_pages(memory.data(), bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t at = 0; at < bytes / sizeof *words; at += stride) {
    REQUIRE(words[at].load() == 3 * rounds);
  }
}

}  // namespace
}  // namespace rueda::test::huge_pages_test
