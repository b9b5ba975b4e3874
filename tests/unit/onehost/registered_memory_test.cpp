#include "onehost/registered_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <random>
#include <string>

#include "ranks/rank_threads.h"
#include "rueda/rueda.h"
#include "unit/child_process.h"

namespace rueda::test::registered_memory_test {

namespace {

using Memory = std::shared_ptr<std::byte[]>;

RegisteredMemory& memory_of_process() {
  const auto memory = RegisteredMemory::of_process();
  memory.status().throw_if_error();
  return *memory.value();
}

// Each byte equals the one before it, and the first equals `value`.
bool is_filled_with(const std::byte* bytes, std::size_t count, std::byte value) {
  return count == 0 || (bytes[0] == value && std::memcmp(bytes, bytes + 1, count - 1) == 0);
}

// Sizes up to a few huge pages, small ones more often.
std::size_t random_size(std::mt19937& random) {
  const unsigned bits = std::uniform_int_distribution<unsigned>(0, 22)(random);
  return random() & ((std::size_t{2} << bits) - 1);
}

struct Tensor {
  Memory memory;
  std::size_t bytes;
  std::byte mark;
};

// Allocates and frees at random; each tensor starts zeroed and keeps its bytes to the end.
void use_at_random(RegisteredMemory& memory, unsigned seed, int steps) {
  std::mt19937 random(seed);
  std::vector<Tensor> tensors;
  for (int step = 0; step < steps; ++step) {
    if (tensors.size() > 20 || (!tensors.empty() && random() % 3 == 0)) {
      std::swap(tensors[random() % tensors.size()], tensors.back());
      const Tensor& last = tensors.back();
      expect(is_filled_with(last.memory.get(), last.bytes, last.mark), "a tensor keeps its bytes");
      tensors.pop_back();
      continue;
    }
    const std::size_t bytes = random_size(random);
    Tensor tensor{memory.allocate(bytes), bytes, static_cast<std::byte>(random() | 1)};
    std::byte* const begin = tensor.memory.get();
    expect(begin != nullptr, "there is room");
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    expect(address % (bytes >= huge_page ? huge_page : 64) == 0, "a tensor is aligned");
    expect(is_filled_with(begin, bytes, std::byte{}), "a new tensor is zero");
    const auto offset = memory.offset_of(begin, bytes);
    expect(offset && memory.memory() + *offset == begin, "a tensor is registered");
    std::memset(begin, static_cast<int>(tensor.mark), bytes);
    tensors.push_back(std::move(tensor));
  }
}

}  // namespace

// Runs first: registered memory of this process would count against its children's limits.
TEST_CASE("limits of the process make the memory shorter or ordinary, never fatal") {
  const auto limited = [](decltype(RLIMIT_AS) resource, std::size_t limit, bool is_registered,
                          std::size_t more = 100) {
    return exit_code_of([=] {
      const rlimit wanted{limit, limit};
      expect(::setrlimit(resource, &wanted) == 0, "the limit is set");
      const auto memory = RegisteredMemory::of_process();
      expect(memory.ok() == is_registered, "registered: " + memory.status().to_string());
      expect(memory.ok() == RegisteredMemory::of_process().ok(), "the same answer again");
      const Memory tensor = allocate(std::size_t{5} << 20);
      expect(is_filled_with(tensor.get(), std::size_t{5} << 20, std::byte{}), "a tensor of zeros");
      tensor[0] = std::byte{1};
      const Memory large = allocate(more);
      expect(large != nullptr, "more than there is registered memory");
    });
  };
  CHECK(limited(RLIMIT_FSIZE, std::size_t{64} << 20, true, std::size_t{65} << 20) == 0);
  CHECK(limited(RLIMIT_FSIZE, std::size_t{1} << 20, false) == 0);
  CHECK(limited(RLIMIT_MEMLOCK, 0, true) == 0);
  if (!can_limit_addresses) return;
  CHECK(limited(RLIMIT_AS, std::size_t{2} << 30, true) == 0);
  CHECK(limited(RLIMIT_AS, std::size_t{512} << 20, true) == 0);
}

TEST_CASE("tensors are zeroed, aligned, registered and apart") {
  use_at_random(memory_of_process(), 7, 600);
}

TEST_CASE("threads allocate and free at once") {
  RegisteredMemory& memory = memory_of_process();
  run_ranks(4, [&](int rank) { use_at_random(memory, static_cast<unsigned>(rank), 100); });
}

TEST_CASE("one thread frees what another has allocated") {
  RegisteredMemory& memory = memory_of_process();
  std::vector<Memory> tensors(64);
  run_ranks(2, [&](int rank) {
    for (std::size_t index = rank; index < tensors.size(); index += 2) {
      tensors[index] = memory.allocate(index << 12);
    }
  });
  run_ranks(2, [&](int rank) {
    for (std::size_t index = 1 - rank; index < tensors.size(); index += 2) tensors[index].reset();
  });
}

TEST_CASE("only allocated registered memory has an offset") {
  RegisteredMemory& memory = memory_of_process();
  std::array<std::byte, 64> elsewhere{};
  CHECK_FALSE(memory.offset_of(elsewhere.data(), 64));
  CHECK_FALSE(memory.offset_of(nullptr, 0));
  CHECK_FALSE(memory.offset_of(memory.memory() + memory.bytes(), 1));
  CHECK_FALSE(memory.offset_of(memory.memory() + memory.bytes() - 1, 1));
  Memory tensor = memory.allocate(3 * huge_page);
  std::byte* const begin = tensor.get();
  CHECK(memory.offset_of(begin, 3 * huge_page));
  CHECK(memory.offset_of(begin + 5, 3 * huge_page - 5));
  CHECK(memory.offset_of(begin + 2 * huge_page, huge_page));
  CHECK_FALSE(memory.offset_of(begin + 5, 3 * huge_page));
  CHECK_FALSE(memory.offset_of(begin, SIZE_MAX));
  tensor.reset();
  CHECK_FALSE(memory.offset_of(begin, 1));
  CHECK_FALSE(memory.offset_of(begin + huge_page, 1));
}

TEST_CASE("what is too large is not there, and what was freed is there again") {
  RegisteredMemory& memory = memory_of_process();
  CHECK(memory.allocate(memory.bytes() + 1) == nullptr);
  CHECK(memory.allocate(SIZE_MAX) == nullptr);
  for (int round = 0; round < 3; ++round) {
    std::vector<Memory> tensors;
    for (int index = 0; index < 3; ++index) {
      tensors.push_back(memory.allocate(huge_page + 5));
      REQUIRE(tensors.back() != nullptr);
      CHECK(is_filled_with(tensors.back().get(), huge_page + 5, std::byte{}));
      std::memset(tensors.back().get(), 1, huge_page + 5);
    }
  }
}

TEST_CASE("freed memory goes back to the system beyond what is kept") {
  // In a child, whose memory is still unused and which keeps a sixteenth of it.
  const int code = exit_code_of([] {
    const rlimit files{std::size_t{128} << 20, std::size_t{128} << 20};
    expect(::setrlimit(RLIMIT_FSIZE, &files) == 0, "a limit");
    RegisteredMemory& memory = memory_of_process();
    const auto resident = [&] {
      std::vector<unsigned char> present(memory.bytes() / small_page);
      expect(::mincore(memory.memory(), memory.bytes(), present.data()) == 0, "mincore");
      std::size_t pages = 0;
      for (const unsigned char page : present) pages += page & 1;
      return pages * small_page;
    };
    constexpr std::size_t max_kept = std::size_t{8} << 20;
    Memory kept = memory.allocate(max_kept);
    Memory freed = memory.allocate(2 * max_kept);
    std::memset(kept.get(), 1, max_kept);
    std::memset(freed.get(), 1, 2 * max_kept);
    expect(resident() == 3 * max_kept, "what is used is there");
    kept.reset();
    expect(resident() == 3 * max_kept, "a little is kept");
    freed.reset();
    expect(resident() == max_kept, "more is not");
    const Memory both = memory.allocate(3 * max_kept);
    expect(is_filled_with(both.get(), 3 * max_kept, std::byte{}), "either is zero when it returns");
  });
  CHECK(code == 0);
}

TEST_CASE("the count of huge pages is the kernel's") {
  const int code = exit_code_of([] {
    RegisteredMemory& memory = memory_of_process();
    expect(memory.huge_page_bytes() == 0, "nothing is counted before it is allocated");
    const Memory tensor = memory.allocate(4 * huge_page);
    std::memset(tensor.get(), 1, 4 * huge_page);
    expect(memory.huge_page_bytes() <= 4 * huge_page, "no more is counted than allocated");
    if (memory.huge_page_bytes() > 0) {
      expect(kilobytes_of_mappings("ShmemPmdMapped") * 1024 >= memory.huge_page_bytes(),
             "the kernel has them");
    }
  });
  CHECK(code == 0);
}

TEST_CASE("a child neither frees nor reuses what its parent has") {
  RegisteredMemory& memory = memory_of_process();
  Memory tensor = memory.allocate(2 * huge_page);
  Memory piece = memory.allocate(100);
  tensor[0] = piece[0] = std::byte{7};
  const int code = exit_code_of([&] {
    expect(tensor[0] == std::byte{7}, "the child sees its parent's tensor");
    tensor.reset();
    piece.reset();
    expect(memory.allocate(64) == nullptr, "the child has no room in its parent's memory");
    RegisteredMemory& own = memory_of_process();
    expect(&own != &memory && own.fd() != memory.fd(), "the child has memory of its own");
    const Memory mine = own.allocate(2 * huge_page);
    expect(mine != nullptr && own.offset_of(mine.get(), 1).has_value(), "and room in it");
    mine[0] = std::byte{9};
  });
  CHECK(code == 0);
  CHECK(tensor[0] == std::byte{7});
  CHECK(piece[0] == std::byte{7});
  CHECK(&memory_of_process() == &memory);
}

}  // namespace rueda::test::registered_memory_test
