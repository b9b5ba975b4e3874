// To which addresses a rank opens streams, and which socket options it sets on them.
#include "tcp/tcp_peer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ranks/transport_conformance.h"
#include "transport/socket.h"

namespace rueda::test::tcp_peer_test {

namespace {

// Rank 0, which sends to rank 1; rank 1 listens but accepts no stream.
class Sender {
 public:
  Sender() {
    REQUIRE(watched_.open());
    auto made = listen_on("tcp:127.0.0.1:0");
    REQUIRE(made.ok());
    listener_ = std::move(made).value();
  }

  [[nodiscard]] const std::string& address() const { return listener_.address; }

  // Sends to `addresses` and makes each attempt when it is due; returns how many streams arrive.
  int streams_to(std::vector<std::string> addresses) {
    peer_ = std::make_unique<TcpPeer>(1, std::move(addresses), context_);
    const Ticket out = peer_->send({.sequence = 1}, std::array{ConstBytes(bytes_)});
    for (Time now = Clock::now(); accepted_.size() < 2 && attempts_ < 10; now = next_) {
      next_ = now + std::chrono::seconds(1);
      peer_->progress(now);
      ++attempts_;
      while (UniqueFd fd = accept_from(listener_.fd.get()).fd) accepted_.push_back(std::move(fd));
    }
    CHECK_FALSE(out->done);
    return static_cast<int>(accepted_.size());
  }

  // TCP_NOTSENT_LOWAT of each stream: the limit of bytes queued but not sent.
  [[nodiscard]] std::vector<int> limits_of_unsent() const {
    const int port = local_port(listener_.fd.get());
    std::vector<int> limits;
    for (int fd = 0; fd < 1024; ++fd) {
      sockaddr_in far{};
      socklen_t length = sizeof far;
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&far), &length) != 0) continue;
      if (far.sin_family != AF_INET || ntohs(far.sin_port) != port) continue;
      int limit = 0;
      length = sizeof limit;
      REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &length) == 0);
      limits.push_back(limit);
    }
    return limits;
  }

 private:
  Key key_{"secret of the world"};
  Handshake handshake_{"ruedatcp", key_, 0, 2};
  EpollSet<TcpWatched> watched_;
  Time next_{};
  const TcpPeer::Context context_{
      0, handshake_, key_, watched_, [this](Time time) { next_ = std::min(next_, time); }, {}};
  Listener listener_;
  std::vector<UniqueFd> accepted_;
  Bytes bytes_ = pattern(1 << 20, 1);
  int attempts_ = 0;
  std::unique_ptr<TcpPeer> peer_;
};

}  // namespace

TEST_CASE("where one interface cannot be used at all, another is tried") {
  Sender sender;
  const std::string none = "tcp:no address";
  SECTION("the first") {
    CHECK(sender.streams_to({none, sender.address()}) > 0);
  }
  SECTION("the second") {
    CHECK(sender.streams_to({sender.address(), none}) > 0);
  }
  SECTION("two of three") {
    CHECK(sender.streams_to({none, none, sender.address()}) > 0);
  }
}

TEST_CASE("the system takes little ahead of what it sends over one of several streams") {
  Sender sender;
  SECTION("several") {
    REQUIRE(sender.streams_to({sender.address(), sender.address()}) == 2);
    CHECK(sender.limits_of_unsent() == std::vector{64 << 10, 64 << 10});
  }
  SECTION("one") {
    REQUIRE(sender.streams_to({sender.address()}) == 1);
    CHECK(sender.limits_of_unsent() == std::vector{256 << 10});
  }
}

}  // namespace rueda::test::tcp_peer_test
