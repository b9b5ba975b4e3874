// Which ranks are asked for a sign of life, and which count as lost.
#include "plan/heartbeat.h"

#include <catch2/catch.hpp>
#include <chrono>

namespace rueda::test::heartbeat_test {

namespace {

using namespace std::chrono_literals;

constexpr Duration timeout = 1s;
const Time start = Time() + 1h;

// A rank that waits from `start` on and calls look() whenever it is due.
struct Waiting {
  Heartbeat heartbeat{{1, 5}, timeout};
  Time now = start;
  int questions = 0;

  // Runs until `end` or until a rank is lost. `answers`: whether a rank answers at a given time.
  template <class Answers>
  std::optional<int> until(Time end, const Answers& answers) {
    while (now < end) {
      const Heartbeat::Look look = heartbeat.look(now, true);
      if (look.ask) {
        ++questions;
        for (const int rank : {1, 5}) {
          if (answers(rank, now)) heartbeat.hear(rank, now);
        }
      }
      if (look.silent) return look.silent;
      REQUIRE(heartbeat.next_look());
      REQUIRE(*heartbeat.next_look() > now);
      now = *heartbeat.next_look();
    }
    return std::nullopt;
  }
};

}  // namespace

TEST_CASE("who answers is not lost, and is asked eight times in each heartbeat") {
  Waiting waiting;
  CHECK_FALSE(waiting.until(start + 100s, [](int, Time) { return true; }));
  CHECK(waiting.questions >= 790);
  CHECK(waiting.questions <= 800);
}

TEST_CASE("a rank that stops is lost within a heartbeat of its stop, and not before") {
  const auto after = std::chrono::milliseconds(GENERATE(take(40, random(0, 5000))));
  Waiting waiting;
  const auto lost = waiting.until(
      start + 100s, [&](int rank, Time at) { return rank == 1 || at < start + after; });
  CHECK(lost == 5);
  CHECK(waiting.now <= start + after + timeout);
  CHECK(waiting.now >= start + after + timeout - timeout / 8);
}

TEST_CASE("a pause of half a heartbeat loses nobody") {
  const auto after = std::chrono::milliseconds(GENERATE(take(40, random(0, 5000))));
  Waiting waiting;
  CHECK_FALSE(waiting.until(start + 20s, [&](int rank, Time at) {
    return rank == 1 || at < start + after || at >= start + after + timeout / 2;
  }));
}

TEST_CASE("who was stopped itself asks anew before it blames anybody") {
  Waiting waiting;
  CHECK_FALSE(waiting.until(start + 2s, [](int, Time) { return true; }));
  waiting.now += 10s;  // no answers, because no rank was asked
  const Heartbeat::Look look = waiting.heartbeat.look(waiting.now, true);
  CHECK(look.ask);
  CHECK_FALSE(look.silent);
  CHECK(waiting.until(waiting.now + 5s, [](int rank, Time) { return rank == 1; }) == 5);
}

TEST_CASE("what a rank has overslept is not the others' silence") {
  // Each look() is 0.4 s late, so that after 5 s it has listened for 1 s.
  Waiting waiting;
  CHECK_FALSE(waiting.until(start + 2s, [](int, Time) { return true; }));
  const Time last = waiting.now;
  std::optional<int> lost;
  while (!lost) {
    waiting.now = *waiting.heartbeat.next_look() + 400ms;
    const Heartbeat::Look look = waiting.heartbeat.look(waiting.now, true);
    if (look.ask) waiting.heartbeat.hear(1, waiting.now);
    lost = look.silent;
  }
  CHECK(lost == 5);
  CHECK(waiting.now >= last + 4s);
  CHECK(waiting.now <= last + 6s);
}

TEST_CASE("a silent rank that is seen to be alive is excused, for three heartbeats at most") {
  Waiting waiting;
  const auto silent = waiting.until(start + 5s, [](int rank, Time) { return rank == 1; });
  REQUIRE(silent == 5);
  const Time begin = waiting.now;
  CHECK(waiting.heartbeat.is_silent(5, waiting.now));
  CHECK_FALSE(waiting.heartbeat.is_silent(1, waiting.now));
  REQUIRE(waiting.heartbeat.excuse(5, waiting.now));
  CHECK_FALSE(waiting.heartbeat.is_silent(5, waiting.now));
  while (waiting.until(start + 60s, [](int rank, Time) { return rank == 1; }) == 5 &&
         waiting.heartbeat.excuse(5, waiting.now)) {
    continue;
  }
  CHECK(waiting.now >= begin + 3 * timeout);
  CHECK(waiting.now <= begin + 3 * timeout + timeout / 8);
  // An answer restarts the timeout.
  waiting.heartbeat.hear(5, waiting.now);
  const Time heard = waiting.now;
  CHECK(waiting.until(start + 60s, [](int rank, Time) { return rank == 1; }) == 5);
  CHECK(waiting.now >= heard + timeout);
  CHECK(waiting.heartbeat.excuse(5, waiting.now));
}

TEST_CASE("nothing is asked of anybody while nothing is waited for, or for ever") {
  Heartbeat idle({1, 2}, timeout);
  CHECK_FALSE(idle.look(start, false).ask);
  CHECK_FALSE(idle.next_look());
  CHECK_FALSE(idle.look(start, true).silent);
  CHECK(idle.next_look());
  CHECK_FALSE(idle.look(start + 10s, false).silent);
  CHECK_FALSE(idle.next_look());
  Heartbeat patient({1, 2}, Duration());
  CHECK_FALSE(patient.look(start, true).ask);
  CHECK_FALSE(patient.next_look());
}

}  // namespace rueda::test::heartbeat_test
