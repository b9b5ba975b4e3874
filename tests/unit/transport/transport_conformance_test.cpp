#include "ranks/transport_conformance.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <optional>

#include "effort.h"
#include "membership/world.h"
#include "onehost/memory_transport.h"
#include "tcp/tcp_transport.h"
#include "transport/byte_ring.h"
#include "transport/composite_transport.h"
#include "transport/inproc.h"
#include "transport/matching.h"

namespace rueda::test::transport_conformance_test {

namespace {

struct Made {
  std::unique_ptr<Transport> transport;
  std::shared_ptr<HostMemory> host{};  // whose wake word the transport uses
};

Made of_threads(InprocHub& hub, int rank) {
  return {hub.make_transport(rank)};
}

Made of_one_host(InprocHub& hub, int rank, std::size_t ring_bytes) {
  auto host = HostMemory::form(*hub.make_bootstrap(rank), soon());
  expect_ok(host.status(), "sharing memory");
  auto transport = make_memory_transport(*host, hub.size(), ring_bytes);
  expect_ok(transport.status(), "a transport in memory");
  return {std::move(transport).value(), *host};
}

Made of_streams(InprocHub& hub, int rank) {
  auto transport = open_tcp_transport(*hub.make_bootstrap(rank), "127.0.0.1", soon());
  expect_ok(transport.status(), "links over TCP");
  return {std::move(transport).value()};
}

// Ranks alternate between two hosts, which `between` links.
Made of_two_hosts(InprocHub& hub, int rank, Made (*between)(InprocHub&, int)) {
  std::vector<int> host_of;
  for (int each = 0; each < hub.size(); ++each) host_of.push_back(each % 2);
  auto host = HostGroup::form(*hub.make_bootstrap(rank), host_of, soon());
  expect_ok(host.status(), "the ranks of a host");
  Made link = between(hub, rank);
  if (!host->memory()) return link;  // alone on its host
  auto transport = join_host(*host, std::move(link.transport));
  expect_ok(transport.status(), "two links");
  return {std::move(transport).value(), host->memory()};
}

struct Kind {
  const char* name;
  std::function<Made(InprocHub&, int rank)> make;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"threads", of_threads},
      {"memory",
       [](InprocHub& hub, int rank) { return of_one_host(hub, rank, default_ring_bytes); }},
      {"memory with small rings",
       [](InprocHub& hub, int rank) { return of_one_host(hub, rank, 4096); }},
      {"tcp", of_streams},
      {"memory and threads",
       [](InprocHub& hub, int rank) { return of_two_hosts(hub, rank, of_threads); }},
      {"memory and tcp",
       [](InprocHub& hub, int rank) { return of_two_hosts(hub, rank, of_streams); }},
  };
  return all;
}

}  // namespace

TEST_CASE("every transport conforms") {
  for (const Kind& kind : kinds()) {
    for (const int size : efforts({1, 2, 3, 4}, {1, 3})) {
      for (const ConformanceCase& test : conformance_cases()) {
        DYNAMIC_SECTION(kind.name << ", " << size << " ranks: " << test.name) {
          InprocHub hub(size);
          run_ranks(size, [&](int rank) {
            const auto bootstrap = hub.make_bootstrap(rank);
            const auto barrier = [&] { expect_ok(bootstrap->barrier(soon()), "barrier"); };
            const Made made = kind.make(hub, rank);
            WakeWord* const word = made.host ? &made.host->header(made.host->rank()).wake : nullptr;
            barrier();
            ConformanceRank self(*made.transport, barrier, word);
            test.run(self);
            barrier();
          });
        }
      }
    }
  }
}

TEST_CASE("a ring keeps every message, however little of it is taken at a time") {
  constexpr std::size_t capacity = 256;
  for (std::uint32_t seed = 0; seed < effort(20U, 5U); ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t limit) {
      return static_cast<std::size_t>(random() % limit);
    };
    RingControl control{};
    Bytes memory(capacity);
    RingProducer out(control, memory);
    RingConsumer in(control, memory);
    Bytes sent;
    Bytes received;
    std::size_t unsent = 0;  // of the message being put in
    std::size_t unread = 0;  // of the message being taken out
    for (int step = 0; step < 5000; ++step) {
      if (auto room = out.room(); !room.empty() && below(2) == 0) {
        if (unsent == 0) {
          unsent = 1 + below(2 * capacity);
          const RingHeader header{unsent, {.sequence = 7}};
          REQUIRE(room.size() >= sizeof header);
          std::memcpy(room.data(), &header, sizeof header);
          out.advance(sizeof header);
          room = out.room();
        }
        const Bytes piece = pattern(std::min(unsent, room.size()), static_cast<unsigned>(step));
        std::copy(piece.begin(), piece.end(), room.begin());
        sent.insert(sent.end(), piece.begin(), piece.end());
        out.advance(piece.size());
        unsent -= piece.size();
        if (unsent == 0) out.pad();
        out.publish();
      }
      if (below(3) == 0) (void)in.release();
      in.look();
      const auto arrived = in.arrived();
      if (arrived.empty() || below(2) == 0) continue;
      if (unread == 0) {
        RingHeader header;
        std::memcpy(&header, arrived.data(), sizeof header);
        REQUIRE(header.tag.sequence == 7);
        unread = header.length;
        in.advance(sizeof header);
      } else {
        const std::size_t taken = std::min({arrived.size(), unread, 1 + below(capacity)});
        received.insert(received.end(), arrived.begin(), arrived.begin() + taken);
        in.advance(taken);
        unread -= taken;
        if (unread == 0) in.skip_padding();
      }
    }
    REQUIRE(received.size() > 10 * capacity);
    REQUIRE(std::equal(received.begin(), received.end(), sent.begin()));
  }
}

namespace {

// A link that is polled while a receive waits, as MPI is.
class PolledLink final : public Transport {
 public:
  std::string_view name() const override { return "polled"; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Ticket send(int peer, Tag, std::span<const ConstBytes>) override {
    return finished_ticket(peer, {});
  }
  Ticket recv(int peer, Tag, std::span<const MutableBytes>) override {
    return waiting_.emplace_back(std::make_shared<Transfer>(Transfer{false, {}, peer}));
  }
  bool progress() override { return false; }
  bool requires_polling() const override { return !waiting_.empty(); }
  std::optional<Time> next_look() const override { return look; }
  bool arm() override { return !requires_polling(); }
  void disarm() override {}
  void fail(int, const Status& why) override { abort(why); }
  void abort(const Status& reason) override {
    for (const Ticket& ticket : waiting_) rueda::finish(*ticket, reason);
    waiting_.clear();
  }

  std::optional<Time> look;

 private:
  std::vector<Ticket> waiting_;
};

}  // namespace

TEST_CASE("a link that must be polled is polled only while it says so") {
  InprocHub hub(2);
  std::vector<std::unique_ptr<Transport>> links;
  links.push_back(hub.make_transport(0));
  links.push_back(std::make_unique<PolledLink>());
  CompositeTransport composite(std::move(links), {0, 1});
  CHECK(composite.name() == "inproc+polled");
  CHECK_FALSE(composite.requires_polling());
  CHECK(composite.arm());
  composite.disarm();
  Bytes received(8);
  const std::array into{MutableBytes(received)};
  const Ticket near = composite.recv(0, {.sequence = 1}, into);
  CHECK_FALSE(composite.requires_polling());
  const Ticket far = composite.recv(1, {.sequence = 1}, into);
  CHECK(composite.requires_polling());
  CHECK_FALSE(composite.arm());
  composite.fail(1, Status(ErrorCode::peer_lost, "gone", 1));
  CHECK(far->done);
  CHECK_FALSE(near->done);
  CHECK_FALSE(composite.requires_polling());
  composite.abort(Status(ErrorCode::shutdown, "over"));
  CHECK(near->done);
}

TEST_CASE("links are looked at when the first of them asks for it") {
  const Time now = Clock::now();
  std::vector<std::unique_ptr<Transport>> links;
  std::vector<PolledLink*> polled;
  for (int i = 0; i < 3; ++i) {
    auto link = std::make_unique<PolledLink>();
    polled.push_back(link.get());
    links.push_back(std::move(link));
  }
  const CompositeTransport composite(std::move(links), {0, 1, 2});
  CHECK(composite.next_look() == std::nullopt);
  polled[1]->look = now + std::chrono::seconds(2);
  CHECK(composite.next_look() == polled[1]->look);
  polled[2]->look = now + std::chrono::seconds(1);
  CHECK(composite.next_look() == polled[2]->look);
}

TEST_CASE("a rank that was killed hears and says nothing more") {
  InprocHub hub(2);
  const auto survivor = hub.make_transport(0);
  const auto victim = hub.make_transport(1);
  hub.kill(1);
  const Bytes bytes = pattern(8, 1);
  Bytes received(8);
  const Ticket in = survivor->recv(1, {.sequence = 1}, std::array{MutableBytes(received)});
  (void)victim->send(0, {.sequence = 1}, std::array{ConstBytes(bytes)});
  (void)survivor->send(1, {.sequence = 1}, std::array{ConstBytes(bytes)});
  CHECK_FALSE(survivor->progress());
  CHECK_FALSE(victim->progress());
  CHECK_FALSE(in->done);
}

}  // namespace rueda::test::transport_conformance_test
