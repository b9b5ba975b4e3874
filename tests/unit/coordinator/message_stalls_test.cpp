// When a message that waits for its other side is reported, and with what.
#include "coordinator/message_stalls.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

namespace rueda::test::message_stalls_test {
namespace {

using namespace std::chrono_literals;
using Strings = std::vector<std::string>;

// Rank 0, which reports messages after a minute.
struct Watched {
  // A message that has waited since `start`, or a little longer.
  WaitingMessage& wait(WaitingMessage message) {
    WaitingMessage& added = messages.emplace_back(message);
    added.count = 5;
    stalls.begin(added);
    start = std::max(start, added.since);
    return added;
  }
  // What is reported `after` so long.
  Strings look(Duration after) {
    std::vector<WaitingMessage*> waiting;
    for (WaitingMessage& message : messages) waiting.push_back(&message);
    stalls.look(start + after, waiting);
    return std::exchange(reports, {});
  }
  Strings hear(int peer, const std::string& place, Duration after) {
    stalls.hear(peer, place, start + after);
    return std::exchange(reports, {});
  }

  std::vector<WaitingMessage> messages;
  std::vector<int> asked;
  Strings reports;
  Time start{};
  MessageStalls stalls{0,
                       60s,
                       {.ask = [this](int peer) { asked.push_back(peer); },
                        .warn = [this](const std::string& report) { reports.push_back(report); }}};
};

TEST_CASE("a message that waits is reported once its other side has said where it is") {
  Watched rank;
  rank.wait({.is_send = false, .peer = 1, .tag = 3});
  REQUIRE(rank.stalls.next_look() == rank.start + 60s);
  CHECK(rank.look(59s).empty());
  CHECK(rank.asked.empty());
  CHECK(rank.look(60s).empty());
  CHECK(rank.asked == std::vector{1});
  const std::string text =
      "a message of 5 x float32 from rank 1 to rank 0 with tag 3 has waited for 60 s: rank 0 "
      "receives it, rank 1 has not sent it";
  SECTION("it says so") {
    CHECK(rank.hear(1, "at train.py:41 in load", 60s) ==
          Strings{text + "; rank 1 is at train.py:41 in load"});
  }
  SECTION("it cannot tell") {
    CHECK(rank.hear(1, "", 60s) == Strings{text});
  }
  SECTION("it is silent") {
    REQUIRE(rank.stalls.next_look() == rank.start + 61s);
    CHECK(rank.look(61s) ==
          Strings{text + "; rank 1 is silent: it has not said within 1 s where it is"});
  }
  SECTION("another rank answers") {
    CHECK(rank.hear(2, "at train.py:41 in load", 60s).empty());
  }
}

TEST_CASE("a message is reported again each time that its wait has doubled") {
  Watched rank;
  rank.wait({.is_send = false, .tag = 0});
  std::vector<Duration> reported;
  for (Duration after{}; after <= 1h; after += 1s) {
    if (!rank.look(after).empty()) reported.push_back(after);
  }
  CHECK(reported == std::vector<Duration>{60s, 120s, 240s, 480s, 960s, 1920s});
}

TEST_CASE("a look that comes late makes one report") {
  Watched rank;
  rank.wait({.is_send = false});
  CHECK(rank.look(1h).size() == 1);
  CHECK(rank.look(1h).empty());
  CHECK(rank.stalls.next_look() == rank.start + 64min);
}

TEST_CASE("a report tells what each side of a message does") {
  Watched rank;
  SECTION("one that anybody may send") {
    rank.wait({.is_send = false, .set_id = 2, .tag = 7});
    CHECK(rank.look(60s) ==
          Strings{"a message of 5 x float32 from any rank to rank 0 with tag 7 in process set 2 "
                  "has waited for 60 s: rank 0 receives it, no rank has sent it"});
  }
  SECTION("one to this very rank") {
    rank.wait({.is_send = true, .peer = 0, .tag = 7});
    CHECK(rank.look(60s) ==
          Strings{"a message of 5 x float32 from rank 0 to rank 0 with tag 7 has waited for 60 "
                  "s: rank 0 sends it, rank 0 has not received it"});
  }
  CHECK(rank.asked.empty());
}

TEST_CASE("messages that wait for one rank are reported together") {
  Watched rank;
  rank.messages.reserve(4);
  rank.wait({.is_send = true, .peer = 1, .tag = 5}).since -= 2s;
  rank.wait({.is_send = true, .peer = 1, .tag = 6});
  rank.wait({.is_send = false, .peer = 2, .tag = 0});
  rank.wait({.is_send = false, .peer = 1, .tag = 9});
  CHECK(rank.look(60s).empty());
  CHECK(rank.asked == std::vector{1, 2});
  CHECK(rank.hear(1, "", 60s) == Strings{"a message of 5 x float32 from rank 0 to rank 1 with tag "
                                         "5 has waited for 62 s: rank 0 sends it, "
                                         "rank 1 has not received it (and 2 more)"});
  CHECK(rank.hear(2, "", 60s).size() == 1);
}

TEST_CASE("messages that may wait and Rueda's own are not reported, and none if that is off") {
  Watched rank;
  rank.messages.reserve(2);
  rank.wait({.is_send = false, .may_wait_long = true, .peer = 1});
  rank.wait({.is_send = false, .set_id = -2, .peer = 1});
  CHECK_FALSE(rank.stalls.next_look());
  CHECK(rank.look(1h).empty());

  MessageStalls never(0, 0s, {});
  WaitingMessage message{.is_send = false, .peer = 1};
  never.begin(message);
  CHECK_FALSE(never.next_look());
}

}  // namespace
}  // namespace rueda::test::message_stalls_test
