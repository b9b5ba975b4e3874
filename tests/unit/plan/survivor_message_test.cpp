// Messages between members of a broken epoch: encoding round-trips, anything else is rejected.
#include "plan/survivor_message.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

namespace rueda::test::survivor_message_test {
namespace {

SurvivorView random_view(std::mt19937& random) {
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  SurvivorView view;
  view.epoch = random() % 1000;
  view.proposal = view.epoch + 10 + random() % 100;
  view.knows_nothing = below(2) == 0;
  view.is_answer = below(2) == 0;
  const auto cause = [&] {
    return Status(ErrorCode::peer_lost, std::string(static_cast<std::size_t>(below(40)), 'x'),
                  below(9) - 1);
  };
  for (int i = below(4); i > 0; --i) view.ended[below(9)] = cause();
  for (int i = below(6); i > 0; --i) {
    const int observer = below(9);
    view.broken[{observer, (observer + 1 + below(8)) % 9}] = cause();
  }
  for (int i = below(3); i > 0; --i) {
    const int first = below(5);
    view.given_up[{first, first + 1 + below(4)}] = {view.epoch + 1 + random() % 9, {first}};
  }
  for (int i = below(6); i > 0; --i) view.reached[below(9)] = view.epoch + 1 + random() % 9;
  return view;
}

}  // namespace

TEST_CASE("a message is what was sent, and no part of it is one") {
  std::mt19937 random(static_cast<unsigned>(GENERATE(range(1, 60))));
  const SurvivorView view = random_view(random);
  std::vector<std::byte> bytes = encode(view);
  const auto decoded = decode_survivor_message(bytes);
  REQUIRE(decoded);
  const auto& same = std::get<SurvivorView>(*decoded);
  REQUIRE(encode(same) == bytes);
  REQUIRE(same.broken.size() == view.broken.size());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    REQUIRE_FALSE(decode_survivor_message(std::span(bytes).first(length)));
  }
  bytes.push_back(std::byte{0});
  REQUIRE_FALSE(decode_survivor_message(bytes));
}

TEST_CASE("whatever is decoded is what encode() makes of it") {
  std::mt19937 random(static_cast<unsigned>(GENERATE(range(1, 60))));
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> bytes =
        round % 2 == 0 ? encode(random_view(random))
                       : encode(EpochHasGoneOn{9, {0, 3}, Status(ErrorCode::peer_lost, "why")});
    for (int change = 1 + round % 3; change > 0; --change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    const auto decoded = decode_survivor_message(bytes);
    if (decoded) REQUIRE(decode_survivor_message(encode(*decoded)));
  }
}

TEST_CASE("a cause is cut where it is long, between characters") {
  std::string text;
  while (text.size() < 3000) text += "\u00e9";
  const Status cause = shortened(Status(ErrorCode::peer_lost, "x" + text, 3));
  REQUIRE(cause.to_string().size() <= 1000);
  REQUIRE(cause.peer() == 3);
  REQUIRE(cause.to_string().size() % 2 == 0);  // "x", whole characters, "..."
  const Status inner(ErrorCode::internal, "why");
  REQUIRE(shortened(Status(ErrorCode::peer_lost, "lost").because(inner)).to_string() ==
          "lost: why");
  REQUIRE(shortened(Status()).ok());
}

}  // namespace rueda::test::survivor_message_test
