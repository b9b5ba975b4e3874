#include "onehost/wake.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "core/unique_fd.h"
#include "ranks/rank_threads.h"

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
    CHECK(sleeper.sleep(std::nullopt) == FutexWake::changed);  // at once: the wake-up came first
  }
  CHECK(word.sleepers == 0);
}

TEST_CASE("who sleeps on descriptors is woken by them, by the event, or not at all") {
  WakeWord word{};
  const UniqueFd event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const UniqueFd other(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const WakeTarget target{&word, event.get()};
  std::array<pollfd, 2> watched{pollfd{event.get(), POLLIN, 0}, pollfd{other.get(), POLLIN, 0}};
  wake(target);
  {
    Sleeper sleeper(word, Sleeper::On::descriptors);
    CHECK(sleeper.sleep(Clock::now() + seconds(0.001), watched) == FutexWake::timeout);
    wake(target);
    CHECK(word.wakes == 1);
    CHECK(sleeper.sleep(std::nullopt, watched) == FutexWake::changed);
    CHECK((watched[0].revents == POLLIN && watched[1].revents == 0));
    ::eventfd_t count = 0;
    CHECK(::eventfd_read(event.get(), &count) == 0);
    CHECK(::eventfd_write(other.get(), 1) == 0);
    CHECK(sleeper.sleep(std::nullopt, watched) == FutexWake::changed);
    CHECK((watched[0].revents == 0 && watched[1].revents == POLLIN));
  }
  CHECK(word.sleepers == 0);
  wake(target);
  CHECK(word.wakes == 1);
}

TEST_CASE("those who sleep on a word and on descriptors are woken together") {
  WakeWord word{};
  const UniqueFd event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const WakeTarget target{&word, event.get()};
  std::atomic<bool> ready{false};
  run_ranks(3, [&](int rank) {
    if (rank == 0) {
      const Time deadline = soon();
      while (word.sleepers != (1U << 16) + 1) {
        expect(Clock::now() < deadline, "two sleepers");
        std::this_thread::yield();
      }
      ready.store(true, std::memory_order_release);
      return wake(target);
    }
    const auto on = rank == 1 ? Sleeper::On::word : Sleeper::On::descriptors;
    std::array<pollfd, 1> watched{pollfd{event.get(), POLLIN, 0}};
    Sleeper sleeper(word, on);
    while (!ready.load(std::memory_order_acquire)) {
      const FutexWake woken = rank == 1 ? sleeper.sleep(soon()) : sleeper.sleep(soon(), watched);
      expect(woken != FutexWake::timeout, "a wake-up that comes");
    }
  });
}

}  // namespace rueda::test::wake_test
