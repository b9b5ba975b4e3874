// Both sides of a handshake trust each other and nobody else: neither an eavesdropper, nor an
// attacker that alters messages, nor the holder of another key.
#include "transport/handshake.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <set>
#include <string>

namespace rueda::test::handshake_test {

namespace {

using Bytes = std::vector<std::byte>;
using Outcome = HelloCheck::Outcome;

constexpr std::string_view protocol = "ruedates";
constexpr int size = 3;

Handshake rank_of_world(int rank, std::string_view secret = "the world's key") {
  return {protocol, Key(secret), rank, size};
}
Bytes altered(Bytes bytes, std::size_t bit) {
  bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  return bytes;
}
Bytes with_rank(Bytes hello, std::uint32_t rank) {
  std::memcpy(hello.data() + 12, &rank, sizeof rank);
  return hello;
}

}  // namespace

TEST_CASE("two ranks of a world believe each other") {
  const int caller = GENERATE(range(0, size));
  const int called = (caller + GENERATE(range(1, size))) % size;
  const Handshake from = rank_of_world(caller);
  const Handshake to = rank_of_world(called);
  Bytes hello = from.hello_to(called);
  CHECK(hello.size() == Handshake::hello_bytes);
  hello.push_back(std::byte{1});  // not part of the hello
  const HelloCheck check = to.check_hello(hello);
  CHECK(check.outcome == Outcome::valid);
  CHECK(check.peer == caller);
  CHECK_FALSE(check.is_rejected());
  CHECK(from.is_welcome_of(called, to.welcome_to(caller)));
}

TEST_CASE("a handshake is on the wire what other processes of this version expect") {
  const Key key("the world's key");
  const std::uint64_t call = GENERATE(std::uint64_t{0}, std::uint64_t{3} << 32 | 7);
  const Bytes hello = rank_of_world(2).hello_to(1, call);
  CHECK(std::memcmp(hello.data(), protocol.data(), 8) == 0);
  const std::array<std::uint32_t, 2> version_and_rank{3, 2};
  CHECK(std::memcmp(hello.data() + 8, version_and_rank.data(), 8) == 0);
  CHECK(std::memcmp(hello.data() + 16, &call, 8) == 0);
  const Digest proof = key.proof({"hello", "2", "1", std::to_string(call)});
  CHECK(std::memcmp(hello.data() + 24, proof.data(), proof.size()) == 0);
  CHECK(rank_of_world(2).welcome_to(1, call) ==
        key.proof({"welcome", "2", "1", std::to_string(call)}));
}

TEST_CASE("a hello and a welcome are for one call") {
  const Handshake caller = rank_of_world(0);
  const Handshake called = rank_of_world(1);
  Bytes hello = caller.hello_to(1, 5);
  CHECK(called.check_hello(hello).call == 5);
  hello[16] = std::byte{6};
  CHECK(called.check_hello(hello).outcome == Outcome::other_world);
  CHECK(caller.is_welcome_of(1, called.welcome_to(0, 5), 5));
  CHECK_FALSE(caller.is_welcome_of(1, called.welcome_to(0, 5), 6));
}

TEST_CASE("a hello that is cut off is waited for") {
  const std::size_t length = GENERATE(range(std::size_t{0}, Handshake::hello_bytes));
  const Bytes hello = rank_of_world(0).hello_to(1);
  const HelloCheck check = rank_of_world(1).check_hello(std::span(hello).first(length));
  CHECK(check.outcome == Outcome::incomplete);
  CHECK_FALSE(check.is_rejected());
}

TEST_CASE("a hello of which one bit is altered is rejected, with the part that is wrong") {
  const std::size_t bit = GENERATE(range(std::size_t{0}, 8 * Handshake::hello_bytes));
  const Bytes hello = altered(rank_of_world(0).hello_to(1), bit);
  const std::size_t byte = bit / 8;
  const Outcome expected = byte < 8    ? Outcome::other_protocol
                           : byte < 12 ? Outcome::other_version
                                       : Outcome::other_world;
  const HelloCheck check = rank_of_world(1).check_hello(hello);
  CHECK(check.outcome == expected);
  CHECK(check.peer == -1);
  CHECK(check.is_rejected());
  // Another protocol is detected at its first different byte: its hello may be shorter.
  const HelloCheck early = rank_of_world(1).check_hello(std::span(hello).first(byte + 1));
  CHECK((byte < 8 ? early.outcome == expected : early.outcome != Outcome::valid));
}

TEST_CASE("bytes that nobody made are no hello") {
  std::mt19937_64 random(GENERATE(range(0U, 200U)));
  Bytes bytes(random() % 100);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  const Bytes hello = rank_of_world(0).hello_to(1);
  // A valid prefix, so that later checks are reached, too.
  const std::size_t right = std::min<std::size_t>(bytes.size(), random() % Handshake::hello_bytes);
  std::copy_n(hello.begin(), right, bytes.begin());
  CHECK(rank_of_world(1).check_hello(bytes).outcome != Outcome::valid);
  CHECK_FALSE(rank_of_world(1).is_welcome_of(0, bytes));
}

TEST_CASE("a rank of another world, with another key, is not believed") {
  const std::string secret = GENERATE(as<std::string>{}, "", "another key", "the world's key ");
  const Handshake stranger = rank_of_world(0, secret);
  CHECK(rank_of_world(1).check_hello(stranger.hello_to(1)).outcome == Outcome::other_world);
  CHECK_FALSE(rank_of_world(1).is_welcome_of(0, stranger.welcome_to(1)));
}

TEST_CASE("a hello for another purpose is not believed") {
  const Handshake other("ruedaxyz", Key("the world's key"), 0, size);
  CHECK(rank_of_world(1).check_hello(other.hello_to(1)).outcome == Outcome::other_protocol);
}

TEST_CASE("a hello that is sent back to its author is rejected, whoever it claims to be from") {
  const Handshake author = rank_of_world(0);
  const std::uint32_t claimed = GENERATE(0U, 1U, 2U, 3U, 1U << 31, ~0U);
  const Bytes reflected = with_rank(author.hello_to(1), claimed);
  CHECK(author.check_hello(reflected).outcome == Outcome::other_world);
}

TEST_CASE("a hello that is passed on to a third rank is rejected, whoever it claims to be from") {
  const std::uint32_t claimed = GENERATE(0U, 1U, 2U, 3U, 1U << 31, ~0U);
  const Bytes heard = with_rank(rank_of_world(0).hello_to(1), claimed);
  CHECK(rank_of_world(2).check_hello(heard).outcome == Outcome::other_world);
}

TEST_CASE("a welcome is believed from the rank that was called, and as a whole") {
  const Handshake caller = rank_of_world(0);
  const Handshake called = rank_of_world(1);
  const Digest welcome = called.welcome_to(0);
  CHECK(caller.is_welcome_of(1, welcome));
  CHECK_FALSE(caller.is_welcome_of(2, welcome));
  CHECK_FALSE(rank_of_world(2).is_welcome_of(1, welcome));
  CHECK_FALSE(called.is_welcome_of(0, welcome));               // reflected
  CHECK_FALSE(caller.is_welcome_of(1, caller.welcome_to(1)));  // its own
  const Bytes hello = caller.hello_to(1);
  CHECK_FALSE(caller.is_welcome_of(1, std::span(hello).subspan(24)));  // part of its own hello
  const Bytes whole(welcome.begin(), welcome.end());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(caller.is_welcome_of(1, std::span(whole).first(length)));
  }
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    CHECK_FALSE(caller.is_welcome_of(1, altered(whole, bit)));
  }
}

TEST_CASE("each rejection has a reason of its own") {
  std::set<std::string_view> reasons;
  for (const Outcome outcome :
       {Outcome::other_protocol, Outcome::other_version, Outcome::other_world}) {
    reasons.insert(HelloCheck{outcome}.reason());
  }
  CHECK(reasons.size() == 3);
  CHECK(reasons.count("") == 0);
  CHECK(HelloCheck{Outcome::incomplete}.reason().empty());
}

}  // namespace rueda::test::handshake_test
