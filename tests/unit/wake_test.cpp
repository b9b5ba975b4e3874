#include "onehost/wake.h"

#include <catch2/catch.hpp>
#include <thread>

#include "rank_threads.h"

namespace rueda::test::wake_test {

namespace {

void await_value(WakeWord& word, const std::atomic<std::uint32_t>& value, std::uint32_t wanted) {
  while (value.load(std::memory_order_acquire) != wanted) {
    Sleeper sleeper(word);
    while (value.load(std::memory_order_acquire) != wanted) {
      expect(sleeper.sleep(soon()) != FutexWake::timeout, "a wake-up that comes");
    }
  }
}

}  // namespace

TEST_CASE("no wake-up is missed when two threads sleep and wake in turn") {
  WakeWord words[2]{};
  std::atomic<std::uint32_t> ball{0};
  run_ranks(2, [&](int rank) {
    const auto self = static_cast<std::uint32_t>(rank);
    for (std::uint32_t round = 0; round < 4000; ++round) {
      await_value(words[rank], ball, 2 * round + self);
      ball.store(2 * round + self + 1, std::memory_order_release);
      wake(words[1 - rank]);
    }
  });
  CHECK(ball == 8000);
  CHECK((words[0].sleepers == 0 && words[1].sleepers == 0));
}

TEST_CASE("one wake-up reaches all who sleep") {
  WakeWord word{};
  std::atomic<std::uint32_t> round{0};
  std::atomic<std::uint32_t> seen{0};
  constexpr std::uint32_t rounds = 300;
  run_ranks(5, [&](int rank) {
    for (std::uint32_t next = 1; next <= rounds; ++next) {
      if (rank == 0) {
        const Time deadline = soon();
        while (seen.load() != 4 * (next - 1)) {
          expect(Clock::now() < deadline, "sleepers that wake up");
          std::this_thread::yield();
        }
        round.store(next, std::memory_order_release);
        wake(word);
      } else {
        await_value(word, round, next);
        ++seen;
      }
    }
  });
}

TEST_CASE("nothing is counted while nobody sleeps, and a sleep ends at its deadline") {
  WakeWord word{};
  wake(word);
  CHECK(word.wakes == 0);
  {
    Sleeper sleeper(word);
    CHECK(word.sleepers == 1);
    CHECK(sleeper.sleep(Clock::now() + seconds(0.001)) == FutexWake::timeout);
    wake(word);
    CHECK(word.wakes == 1);
    CHECK(sleeper.sleep(std::nullopt) == FutexWake::changed);  // at once: it came before
  }
  CHECK(word.sleepers == 0);
}

}  // namespace rueda::test::wake_test
