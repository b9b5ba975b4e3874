#include "onehost/host_memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/cpu_quota.h"
#include "core/interruption.h"
#include "onehost/host_exchange.h"
#include "onehost/host_peer_info.h"
#include "onehost/processors.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"
#include "transport/socket.h"

namespace rueda::test::host_memory_test {

namespace {

using HostMemoryPtr = std::shared_ptr<HostMemory>;

// Runs body(memory) on `size` threads that share memory.
void on_one_host(int size, const std::function<void(HostMemory&)>& body) {
  InprocHub hub(size);
  run_ranks(size, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    auto formed = HostMemory::form(*bootstrap, soon());
    expect_ok(formed.status(), "sharing memory");
    body(*formed.value());
  });
}

std::vector<int> all_ranks(const HostMemory& memory) {
  std::vector<int> ranks(static_cast<std::size_t>(memory.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Waits for the block, because ranks publish at different times.
std::byte* await(const HostMemory& memory, int rank, std::uint64_t key) {
  const Time deadline = soon();
  for (;;) {
    if (std::byte* found = memory.find(rank, key)) return found;
    expect(Clock::now() < deadline, "a block that is published in time");
    std::this_thread::yield();
  }
}

std::atomic<std::uint32_t>& word_at(std::byte* memory) {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory);
}

// A barrier of the ranks in memory that rank 0 publishes under `key`.
void meet(HostMemory& memory, std::uint64_t key) {
  if (memory.rank() == 0) static_cast<void>(memory.publish(key, 4));
  auto& arrived = word_at(await(memory, 0, key));
  ++arrived;
  const Time deadline = soon();
  while (arrived != static_cast<std::uint32_t>(memory.size())) {
    expect(Clock::now() < deadline, "ranks that meet");
    std::this_thread::yield();
  }
}

bool is_zero(const std::byte* bytes, std::size_t count) {
  return std::all_of(bytes, bytes + count, [](std::byte byte) { return byte == std::byte{}; });
}

}  // namespace

TEST_CASE("each rank finds what the others publish") {
  for (const int size : {1, 2, 4}) {
    on_one_host(size, [&](HostMemory& memory) {
      expect(memory.size() == size, "the size is the bootstrap's");
      expect(memory.find(memory.rank(), 5) == nullptr, "nothing is there yet");
      std::byte* own = memory.publish(5, 100);
      expect(reinterpret_cast<std::uintptr_t>(own) % 4096 == 0 && is_zero(own, 4096), "zeroed");
      expect(memory.find(memory.rank(), 5) == own, "a rank finds its own");
      word_at(own) = static_cast<std::uint32_t>(memory.rank() + 1);
      for (int peer = 0; peer < size; ++peer) {
        auto& theirs = word_at(await(memory, peer, 5));
        const Time deadline = soon();
        while (theirs != static_cast<std::uint32_t>(peer + 1)) {
          expect(Clock::now() < deadline, "what a peer writes is seen");
          std::this_thread::yield();
        }
        memory.header(peer).world_end += 1;
      }
      meet(memory, 6);
      expect(memory.header(memory.rank()).world_end == static_cast<std::uint32_t>(size),
             "a header is one for all");
    });
  }
}

TEST_CASE("what all members have retired is taken again, zeroed") {
  // Far more memory than a control memory holds, with short-lived keys and ranks at different
  // paces.
  on_one_host(3, [](HostMemory& memory) {
    const auto ranks = all_ranks(memory);
    const Time deadline = soon();
    for (std::uint64_t key = 1; key <= 2160; ++key) {
      const std::size_t bytes = key % 100 == 0 ? 2 * huge_page : huge_page - 4096;
      std::byte* own = nullptr;
      while (own == nullptr) {
        try {
          own = memory.publish(key, bytes);
        } catch (const std::bad_alloc&) {
          expect(Clock::now() < deadline, "memory that comes free");
          std::this_thread::yield();
        }
      }
      // Peers write to another page each time, possibly while this rank checks.
      const std::size_t written = key % 3;
      for (std::size_t page = 0; page < 3; ++page) {
        expect(page == written || is_zero(own + page * 4096, 4096), "zeroed");
      }
      for (int peer = 0; peer < memory.size(); ++peer) {
        std::memset(await(memory, peer, key) + written * 4096 + 64 * memory.rank(), 1, 8);
      }
      memory.retire(key, ranks);
    }
  });
}

TEST_CASE("memory is not taken again before the last member has retired it") {
  on_one_host(2, [](HostMemory& memory) {
    const auto ranks = all_ranks(memory);
    std::byte* own = memory.publish(1, 4096);
    static_cast<void>(await(memory, 1 - memory.rank(), 1));
    meet(memory, 2);
    if (memory.rank() == 0) {
      memory.retire(1, ranks);
      std::byte* other = memory.publish(3, 4096);
      expect(other != own && memory.find(0, 1) == own, "rank 1 still uses it");
    }
    meet(memory, 4);
    if (memory.rank() == 1) memory.retire(1, ranks);
    meet(memory, 5);
    if (memory.rank() == 0) {
      static_cast<void>(memory.publish(6, 4096));
      expect(memory.find(0, 1) == nullptr, "all have retired it");
    }
    meet(memory, 7);
  });
}

TEST_CASE("a rank may retire before its peers have published") {
  on_one_host(2, [](HostMemory& memory) {
    const auto ranks = all_ranks(memory);
    if (memory.rank() == 0) memory.retire(1, ranks);
    meet(memory, 2);
    if (memory.rank() == 1) {
      static_cast<void>(memory.publish(1, 10));
      expect(memory.find(1, 1) != nullptr, "it is there until all have retired it");
      memory.retire(1, ranks);
      expect(memory.find(1, 1) == nullptr, "all have retired it");
    }
    meet(memory, 3);
  });
}

TEST_CASE("more keys than a directory holds are refused, and come in when others have gone") {
  on_one_host(1, [](HostMemory& memory) {
    std::uint64_t key = 0;
    try {
      for (;; ++key) static_cast<void>(memory.publish(key, 1));
    } catch (const std::bad_alloc&) {
    }
    expect(key == Directory::capacity, "a directory of its capacity");
    memory.retire(7, {0});
    expect(memory.find(0, 7) == nullptr && memory.find(0, 8) != nullptr, "one is gone");
    expect(memory.publish(~std::uint64_t{0}, 1) != nullptr, "another has come");
    expect(memory.find(0, ~std::uint64_t{0}) != nullptr, "and is found");
  });
}

TEST_CASE("registered memory is reached at its offset") {
  on_one_host(2, [](HostMemory& memory) {
    const auto tensor = RegisteredMemory::of_process().value()->allocate(1000);
    const auto offset = memory.registered(tensor.get(), 1000);
    expect(offset.has_value(), "it is registered");
    expect(memory.registered_of(memory.rank(), *offset) == tensor.get(), "here");
    expect(!memory.registered(&offset, sizeof offset), "the stack is not");
    std::byte* own = memory.publish(1, 8);
    std::memcpy(own, &*offset, 8);
    tensor[999] = static_cast<std::byte>(memory.rank() + 1);
    meet(memory, 2);
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, memory.find(1 - memory.rank(), 1), 8);
    const std::byte* seen = memory.registered_of(1 - memory.rank(), theirs);
    expect(seen[999] == static_cast<std::byte>(2 - memory.rank()), "there");
    meet(memory, 3);
  });
}

TEST_CASE("any memory is read and written where the kernel permits it") {
  on_one_host(2, [](HostMemory& memory) {
    if (!memory.has_direct_access()) return;
    std::vector<int> values(10'000, memory.rank());
    auto* own = reinterpret_cast<std::atomic<std::uint64_t>*>(memory.publish(1, 8));
    *own = reinterpret_cast<std::uintptr_t>(values.data());
    meet(memory, 2);
    const int peer = 1 - memory.rank();
    const std::uint64_t remote =
        *reinterpret_cast<std::atomic<std::uint64_t>*>(memory.find(peer, 1));
    const std::size_t half = values.size() / 2;
    std::vector<int> read(half);
    expect_ok(memory.read_from(peer, read.data(), remote, half * sizeof(int)), "reading");
    expect(read == std::vector<int>(half, peer), "what was read");
    const std::vector<int> written(half, 10 + memory.rank());
    expect_ok(
        memory.write_to(peer, written.data(), remote + half * sizeof(int), half * sizeof(int)),
        "writing");
    meet(memory, 3);
    expect(values[half] == 10 + peer && values.back() == 10 + peer, "what was written");
    const Status refused = memory.read_from(peer, read.data(), 8, 8);
    expect(!refused.ok() && refused.peer() == peer, "an address that is not there");
    expect(refused.to_string().find("rank " + std::to_string(peer)) != std::string::npos, "named");
    meet(memory, 4);
  });
}

TEST_CASE("a rank that does not come ends the forming for all") {
  InprocHub hub(3);
  run_ranks(2, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    const auto formed = HostMemory::form(*bootstrap, Clock::now() + seconds(0.05));
    expect(!formed.ok() && formed.status().to_string().find("rank") != std::string::npos,
           "an error that names a rank");
  });
}

TEST_CASE("a rank that vanishes while files are handed on ends the forming for all") {
  InprocHub hub(3);
  run_ranks(3, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    if (rank == 1) {
      expect_ok(bootstrap->allgather("host/info", HostPeerInfo{}.encode(), soon()).status(),
                "a card");
      return;
    }
    const auto formed = HostMemory::form(*bootstrap, Clock::now() + seconds(0.3));
    expect(!formed.ok(), "an error");
  });
}

TEST_CASE("a rank that fails is named to all, itself included") {
  InprocHub hub(3);
  run_ranks(3, [&](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    const Status failed(ErrorCode::internal, "out of luck");
    const Expected<std::string> own =
        rank == 1 ? Expected<std::string>(failed) : Expected<std::string>(std::string());
    const auto heard = bootstrap->allgather("a round", own, soon());
    expect(heard.status().to_string() == "rank 1: out of luck", heard.status().to_string());
    expect(bootstrap->allgather("another", std::string("x"), soon()).value()[2] == "x", "words");
  });
}

TEST_CASE("descriptors of more ranks than a message holds reach all") {
  constexpr int size = 90;
  const auto listener = listen_on("unix:@rueda-test-" + random_name());
  REQUIRE(listener.ok());
  const MeetingPoint place{listener.value().fd.get(), listener.value().address, random_name()};
  run_ranks(size, [&](int rank) {
    // The file's length identifies its rank.
    const auto file = make_memory_file(static_cast<std::size_t>(rank + 1) * 4096);
    expect_ok(file.status(), "a file");
    const std::array<int, 3> own{file.value().get(), file.value().get(), file.value().get()};
    std::vector<int> lengths(size);
    const auto take = [&](int from, std::span<UniqueFd> fds) -> Status {
      struct stat found{};
      if (fds.size() != 3 || ::fstat(fds[2].get(), &found) != 0) {
        return Status(ErrorCode::internal, "not the file");
      }
      lengths[static_cast<std::size_t>(from)] += static_cast<int>(found.st_size / 4096);
      return {};
    };
    expect_ok(exchange_descriptors(place, rank, size, own, take, soon()), "exchanging");
    for (int from = 0; from < size; ++from) {
      expect(lengths[static_cast<std::size_t>(from)] == from + 1, "one file of each rank");
    }
  });
}

TEST_CASE("handing descriptors on ends where it is interrupted") {
  struct Interrupted {};
  const auto listener = listen_on("unix:@rueda-test-" + random_name());
  REQUIRE(listener.ok());
  const MeetingPoint place{listener.value().fd.get(), listener.value().address, random_name()};
  const auto file = make_memory_file(4096);
  REQUIRE(file.ok());
  const std::array<int, 1> own{file.value().get()};
  const auto take = [](int, std::span<UniqueFd>) { return Status(); };
  for (const int rank : {0, 1}) {  // the other rank never comes
    const Interruptible interruptible([] { throw Interrupted(); }, std::chrono::milliseconds(1));
    REQUIRE_THROWS_AS(exchange_descriptors(place, rank, 2, own, take, soon()), Interrupted);
  }
}

TEST_CASE("each rank has a processor where they can be matched") {
  CHECK(can_each_have_a_processor({{0}, {1}}));
  CHECK(can_each_have_a_processor({{0, 1}, {0, 1}}));
  CHECK(can_each_have_a_processor({{0, 1, 2}, {0, 1}, {0}}));
  CHECK(can_each_have_a_processor({{}, {0}}));
  CHECK_FALSE(can_each_have_a_processor({{3}, {3}}));
  CHECK_FALSE(can_each_have_a_processor({{0, 1}, {0, 1}, {0, 1}}));
  CHECK_FALSE(can_each_have_a_processor({{0, 1}, {0, 1, 2, 3}, {1}, {0}}));
  CHECK(can_each_have_a_processor({allowed_processors()}));
  CHECK_FALSE(allowed_processors().empty());
  auto count = static_cast<int>(allowed_processors().size());
  if (const int at_once = ranks_within_cpu_quota(); at_once > 0) count = std::min(count, at_once);
  for (const int size : {count, count + 1}) {
    if (size > 64) continue;
    on_one_host(size, [&](HostMemory& memory) {
      expect(memory.is_oversubscribed() == (size > count), "as many as the system allows");
    });
  }
}

}  // namespace rueda::test::host_memory_test
