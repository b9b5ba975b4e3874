// What answers where a rank is called is believed by its proof alone, also when it says good-bye.
#include "transport/connections.h"

#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "core/log.h"
#include "core/wait_fd.h"
#include "ranks/rank_threads.h"

namespace rueda::test::connections_test {

namespace {

const Key key("the world's key");
constexpr std::string_view protocol = "ruedates";

// What rank 0 of two concludes about rank 1, in whose place something answers every call with
// `good_bye` and ends.
struct Concluded {
  bool has_left = false;
  bool is_lost = false;
};
Concluded conclude(std::span<const std::byte> good_bye) {
  auto own = listen_on("unix:@rueda-test-" + random_name());
  auto other = listen_on("unix:@rueda-test-" + random_name());
  REQUIRE((own.ok() && other.ok()));
  Connections::Settings settings{"a test", protocol, 0, {own->address, other->address}, {}, key};
  settings.listeners.push_back(std::move(own).value());
  Concluded concluded;
  Connections connections(std::move(settings),
                          {[](int, std::span<const std::byte>) {},
                           [&](int, const Status&) { concluded.is_lost = true; }, [] {}});
  REQUIRE(connections.open().ok());
  connections.send(1, {});
  const Time deadline = soon();
  while (!connections.has_left(1)) {
    REQUIRE(Clock::now() < deadline);
    if (Accepted call = accept_from(other->fd.get()); call.fd) {
      SocketLink(std::move(call.fd), false).end_with(frame_of(FrameKind::good_bye, good_bye));
    }
    connections.progress();
  }
  concluded.has_left = true;
  static_cast<void>(connections.close(Clock::now()));
  return concluded;
}

}  // namespace

TEST_CASE("a good-bye before the welcome is believed with a proof") {
  const Handshake rank_one(protocol, key, 1, 2);
  CHECK_FALSE(conclude(rank_one.good_bye()).is_lost);
}

TEST_CASE("a good-bye without a proof, or with another rank's, is a loss") {
  const Handshake rank_one(protocol, key, 1, 2);
  const Handshake rank_zero(protocol, key, 0, 2);
  const Handshake stranger(protocol, Key("another key"), 1, 2);
  CHECK(conclude({}).is_lost);
  CHECK(conclude(rank_zero.good_bye()).is_lost);
  CHECK(conclude(stranger.good_bye()).is_lost);
  CHECK(conclude(rank_one.welcome_to(0)).is_lost);
}

}  // namespace rueda::test::connections_test
