// Large results: memory freed by one collective is reused by the next, within limits.
#include "backend/large_results.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace rueda::test::large_results_test {

namespace {

constexpr std::size_t mib = 1 << 20;

}  // namespace

TEST_CASE("memory begins at a huge page and can be written to its last byte") {
  const auto results = LargeResults::make();
  const std::size_t bytes = GENERATE(as<std::size_t>{}, 1, LargeResults::min_bytes, 2 * mib,
                                     5 * mib + 3, LargeResults::marked_bytes + 1);
  for (int round = 0; round < 3; ++round) {
    const auto memory = results->allocate(bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.get()) % (2 * mib) == 0);
    std::memset(memory.get(), 1 + round, bytes);
    CHECK(memory[bytes - 1] == static_cast<std::byte>(1 + round));
  }
}

TEST_CASE("what is given back is handed out again, but not for a result of half the size") {
  const auto results = LargeResults::make();
  auto first = results->allocate(8 * mib);
  auto second = results->allocate(6 * mib);
  std::byte* const larger = first.get();
  std::byte* const smaller = second.get();
  CHECK(results->kept() == 0);
  first.reset();
  second.reset();
  CHECK(results->kept() == 14 * mib);
  CHECK(results->allocate(4 * mib - 1).get() == smaller);
  const auto again = results->allocate(5 * mib);
  CHECK(again.get() == smaller);
  CHECK(results->allocate(5 * mib).get() == larger);
  CHECK(results->allocate(mib).get() != larger);
}

TEST_CASE("only so much is kept, the latest") {
  const auto results = LargeResults::make();
  std::vector<std::shared_ptr<std::byte[]>> all;
  for (std::size_t i = 0; i < LargeResults::max_kept_pieces + 2; ++i) {
    all.push_back(results->allocate(mib + i));
  }
  std::byte* const last = all.back().get();
  for (auto& each : all) each.reset();
  CHECK(results->kept() < (LargeResults::max_kept_pieces + 1) * mib);
  CHECK(results->allocate(mib + LargeResults::max_kept_pieces + 1).get() == last);
  results->allocate(LargeResults::max_kept_bytes + 1).reset();
  CHECK(results->kept() < (LargeResults::max_kept_pieces + 1) * mib);
  results->allocate(LargeResults::max_kept_bytes).reset();
  CHECK(results->kept() == LargeResults::max_kept_bytes);
}

TEST_CASE("results come back from any thread, also after the engine has gone") {
  auto results = LargeResults::make();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([results] {
      for (int round = 0; round < 50; ++round) {
        auto memory = results->allocate(mib);
        memory[0] = memory[mib - 1] = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(results->kept() <= 4 * mib);
  auto memory = results->allocate(mib);
  results.reset();
  memory[0] = std::byte{2};
  memory.reset();
}

}  // namespace rueda::test::large_results_test
