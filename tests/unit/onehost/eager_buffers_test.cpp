// Data sent along with a round of a plan, between ranks that share memory.
#include "onehost/eager_buffers.h"

#include <array>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <new>

#include "core/strings.h"
#include "membership/inproc_world.h"
#include "onehost/readiness_table.h"
#include "ranks/rank_threads.h"

namespace rueda::test::eager_buffers_test {

namespace {

constexpr std::uint64_t key = 1000;
constexpr int slots = 300;  // more than one part
constexpr std::size_t table_bytes = 1 << 16;

struct Place {
  int size;
  int rank;
  std::shared_ptr<HostMemory> host;
  std::vector<int> members;
};

void run_members(int size, const std::function<void(const Place&)>& body) {
  InprocHub hub(size);
  run_ranks(size, [&](int rank) {
    auto formed = HostMemory::form(*hub.make_bootstrap(rank), soon());
    formed.status().throw_if_error();
    Place place{size, rank, std::move(formed).value(), {}};
    for (int member = 0; member < size; ++member) place.members.push_back(member);
    body(place);
  });
}

// The bytes that `rank` sends along with a round.
void fill(std::byte* target, std::size_t bytes, int rank, int slot, std::uint64_t round) {
  const std::uint64_t first = static_cast<std::uint64_t>(rank * 100 + slot) + 7 * round;
  for (std::size_t i = 0; i < bytes; ++i) target[i] = static_cast<std::byte>((first + i) * 31 >> 2);
}

}  // namespace

TEST_CASE("all see what each has sent along with every round") {
  const int size = GENERATE(2, 3, 4);
  run_members(size, [&](const Place& place) {
    if (place.rank == 0) {
      static_cast<void>(place.host->publish(1, table_bytes, table_bytes));
    }
    const Time limit = soon();
    const auto wait_until = [&](const auto& condition) {
      while (!condition()) {
        expect(Clock::now() < limit, "no hang");
        std::this_thread::yield();
      }
    };
    wait_until([&] { return place.host->find(0, 1) != nullptr; });
    ReadinessTable table(place.host->find(0, 1), slots, size);
    EagerBuffers buffers(place.host, place.members, place.rank, {.key = key, .slots = slots});
    std::uint64_t read = 0;
    std::vector<const std::byte*> sent;
    std::array<std::byte, EagerBuffers::Settings().capacity> expected{};
    std::uint64_t number = 0;
    for (const int slot : {0, 31, 32, 299}) {
      for (const std::size_t bytes : {0, 1, 56, 57, 2048, 2049, 4096, 4097, 16384, 100}) {
        // The slot gets its next plan at once, because no rank lags behind.
        const ReadinessTable::Plan plan{slot, ++number};
        buffers.reserve(slot, bytes);
        for (std::uint64_t round = 0; round < 7; ++round) {
          std::byte* const own = buffers.offer(slot, round, bytes, bytes);
          expect(own != nullptr, "memory");
          fill(own, bytes, place.rank, slot, round);
          expect(table.join(plan, round) != ReadinessTable::Joined::off, "a plan that goes on");
          wait_until([&] { return table.read(read).has_value(); });
          ++read;
          expect(buffers.collect(slot, round, bytes, sent), "all have sent something");
          for (int member = 0; member < size; ++member) {
            fill(expected.data(), bytes, member, slot, round);
            const std::byte* const got = sent[static_cast<std::size_t>(member)];
            expect(std::memcmp(expected.data(), got, bytes) == 0,
                   str("what ", member, " has sent along"));
          }
        }
        // All ranks have read the last round before any of them reserves the slot again.
        expect(table.join({slot, ++number}, 0) != ReadinessTable::Joined::off,
               "a plan that goes on");
        wait_until([&] { return table.read(read).has_value(); });
        ++read;
      }
    }
  });
}

TEST_CASE("what the first member alone writes is read by all, unless it withdraws it") {
  const auto bytes = GENERATE(std::size_t{8}, std::size_t{3000});
  std::barrier together(3);
  run_members(3, [&](const Place& place) {
    EagerBuffers buffers(place.host, place.members, place.rank,
                         {.key = key, .slots = slots, .writers = EagerBuffers::Writers::first});
    std::vector<const std::byte*> sent;
    for (const int slot : {0, 299}) {
      buffers.reserve(slot, bytes);
      expect(buffers.is_reserved(slot) == (place.rank == 0), "memory of the first");
      for (std::uint64_t round = 0; round < 6; ++round) {
        std::vector<std::byte> expected(bytes);
        fill(expected.data(), bytes, 0, slot, round);
        const bool withdraws = round >= 4;
        if (place.rank == 0) fill(buffers.offer(slot, round, bytes, bytes), bytes, 0, slot, round);
        if (place.rank == 0 && withdraws) buffers.withdraw(slot, round);
        together.arrive_and_wait();
        expect(buffers.collect(slot, round, bytes, sent) == !withdraws, "whether there is any");
        const bool is_right =
            withdraws || std::equal(expected.begin(), expected.end(), sent.front());
        expect(is_right && sent.size() == (withdraws ? 0 : 1), "what the first has written");
        together.arrive_and_wait();
      }
    }
  });
}

TEST_CASE("a member that withdraws has sent nothing, as all see and it itself") {
  const auto bytes = GENERATE(std::size_t{8}, std::size_t{16384});
  std::barrier together(2);
  run_members(2, [&](const Place& place) {
    EagerBuffers buffers(place.host, place.members, place.rank, {.key = key, .slots = slots});
    buffers.reserve(5, bytes);
    std::vector<const std::byte*> sent;
    for (std::uint64_t round = 0; round < 8; ++round) {
      const bool withdraws = round % 3 == 1;
      if (place.rank == 1 && withdraws) {
        buffers.withdraw(5, round);
      } else {
        fill(buffers.offer(5, round, bytes, bytes), bytes, place.rank, 5, round);
      }
      together.arrive_and_wait();
      expect(buffers.collect(5, round, bytes, sent) == !withdraws, "whether all have sent");
      together.arrive_and_wait();
    }
  });
}

TEST_CASE("buffers take no more memory than they may, and give it back to the slots' next plans") {
  run_members(2, [&](const Place& place) {
    EagerBuffers buffers(place.host, place.members, place.rank,
                         {.key = key, .slots = slots, .memory = 64 << 10});
    const auto offers = [&](int slot, std::size_t used) {
      bool all = true;
      for (const std::uint64_t round : {0, 1, 2}) {
        all = buffers.offer(slot, round, 16384, used) != nullptr && all;
      }
      return all;
    };
    for (int slot = 0; slot < 4; ++slot) buffers.reserve(slot, 16384);
    expect(offers(0, 16384), "half of it");
    expect(offers(1, 100), "a page for each round");
    expect(offers(2, 8192), "more");
    expect(!offers(3, 16384), "not so much");
    buffers.reserve(0, 16384);  // for another plan
    expect(offers(3, 16384), "what the first has given back");
    expect(buffers.offer(0, 0, 16384, 16384) == nullptr, "and it has no more");
  });
}

TEST_CASE("who is alone needs no host's memory") {
  EagerBuffers buffers(nullptr, {0}, 0, {.key = key, .slots = slots});
  std::vector<const std::byte*> sent;
  for (const std::size_t bytes : {8, 4096}) {
    buffers.reserve(7, bytes);
    for (std::uint64_t round = 0; round < 3; ++round) {
      std::byte* const own = buffers.offer(7, round, bytes, bytes);
      fill(own, bytes, 0, 7, round);
      REQUIRE(buffers.collect(7, round, bytes, sent));
      CHECK((sent.size() == 1 && sent.front() == own));
    }
  }
}

TEST_CASE("without the memory of one member nothing is collected by any, and later again") {
  std::barrier together(2);
  run_members(2, [&](const Place& place) {
    std::uint64_t other_key = 5;
    // The memory left on rank 1 is too small for a part; it tries again later.
    try {
      while (place.rank == 1) {
        static_cast<void>(place.host->publish(other_key++, std::size_t{1} << 20));
      }
    } catch (const std::bad_alloc&) {
    }
    EagerBuffers buffers(place.host, place.members, place.rank, {.key = key, .slots = slots});
    buffers.reserve(3, 8);
    expect((buffers.offer(3, 0, 8, 8) != nullptr) == (place.rank == 0), "memory of one");
    together.arrive_and_wait();
    std::vector<const std::byte*> sent;
    expect(!buffers.collect(3, 0, 8, sent), "nothing");
    together.arrive_and_wait();
    if (place.rank == 1) {
      for (std::uint64_t taken = 5; taken < other_key; ++taken) {
        place.host->retire(taken, {1});
      }
    }
    together.arrive_and_wait();
    buffers.reserve(200, 8);
    std::byte* const own = buffers.offer(200, 0, 8, 8);
    expect(own != nullptr, "memory of both");
    std::memset(own, 1 + place.rank, 8);
    together.arrive_and_wait();
    expect(buffers.collect(200, 0, 8, sent), "of both");
    expect(sent[0][7] == std::byte{1} && sent[1][7] == std::byte{2}, "their bytes");
    together.arrive_and_wait();
  });
}

}  // namespace rueda::test::eager_buffers_test
