#include "transport_conformance.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>

#include "transport/inproc.h"
#include "transport/shm.h"
#include "transport/shm_ring.h"

namespace rueda::test::transport_conformance_test {

namespace {

using MakeTransport = std::function<std::unique_ptr<Transport>(int rank)>;

struct Kind {
  const char* name;
  std::function<MakeTransport(InprocHub&)> prepare;  // what the ranks share
};

MakeTransport with_own_mappings(InprocHub& hub, std::size_t ring_bytes) {
  return [&hub, ring_bytes](int rank) {
    const auto bootstrap = hub.make_bootstrap(rank);
    auto transport = make_shm_transport(*bootstrap, soon(), ring_bytes);
    expect_ok(transport.status(), "setting shared memory up");
    return std::move(transport).value();
  };
}

// Ranks that see the rings at one address, so that a thread sanitizer can judge the order of
// accesses.
MakeTransport with_one_mapping(InprocHub& hub) {
  auto segment = ShmSegment::create(hub.size(), 8192);
  REQUIRE(segment.ok());
  auto bells = std::make_shared<std::vector<Doorbell>>();
  std::vector<std::string> names;
  for (int rank = 0; rank < hub.size(); ++rank) {
    auto bell = Doorbell::open();
    REQUIRE(bell.ok());
    names.push_back(bell->name());
    bells->push_back(std::move(bell).value());
  }
  return [shared = std::move(segment).value(), bells, names](int rank) {
    return make_shm_transport(shared, rank, std::move((*bells)[static_cast<std::size_t>(rank)]),
                              names);
  };
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"inproc",
       [](InprocHub& hub) { return [&hub](int rank) { return hub.make_transport(rank); }; }},
      {"shm", [](InprocHub& hub) { return with_own_mappings(hub, default_ring_bytes); }},
      {"shm with small rings", [](InprocHub& hub) { return with_own_mappings(hub, 4096); }},
      {"shm with one mapping", with_one_mapping},
  };
  return all;
}

}  // namespace

TEST_CASE("every transport conforms") {
  for (const Kind& kind : kinds()) {
    for (const int size : {1, 2, 3, 4}) {
      for (const ConformanceCase& test : conformance_cases()) {
        DYNAMIC_SECTION(kind.name << ", " << size << " ranks: " << test.name) {
          InprocHub hub(size);
          const MakeTransport make = kind.prepare(hub);
          run_ranks(size, [&](int rank) {
            const auto bootstrap = hub.make_bootstrap(rank);
            const auto barrier = [&] { expect_ok(bootstrap->barrier(soon()), "barrier"); };
            const auto transport = make(rank);
            ConformanceRank self{*transport, barrier};
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
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t limit) {
      return static_cast<std::size_t>(random() % limit);
    };
    RingControl control{};
    Bytes memory(capacity);
    RingProducer out(control, memory.data(), capacity);
    RingConsumer in(control, memory.data(), capacity);
    Bytes sent;
    Bytes received;
    std::size_t unsent = 0;  // of the message that is being put in
    std::size_t unread = 0;  // of the one that is being taken out
    for (int step = 0; step < 5000; ++step) {
      if (auto room = out.room(); !room.empty() && below(2) == 0) {
        if (unsent == 0) {
          unsent = 1 + below(2 * capacity);
          const RingHeader header{unsent, 7};
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
        REQUIRE(header.tag == 7);
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

TEST_CASE("a rank that was killed hears and says nothing more") {
  InprocHub hub(2);
  const auto survivor = hub.make_transport(0);
  const auto victim = hub.make_transport(1);
  hub.kill(1);
  const Bytes bytes = pattern(8, 1);
  Bytes received(8);
  const Ticket in = survivor->recv(1, 1, std::array{MutableBytes(received)});
  (void)victim->send(0, 1, std::array{ConstBytes(bytes)});
  (void)survivor->send(1, 1, std::array{ConstBytes(bytes)});
  CHECK_FALSE(survivor->progress());
  CHECK_FALSE(victim->progress());
  CHECK_FALSE(in->done);
  const Status status = survivor->wait(in, Clock::now());
  CHECK(status.code() == ErrorCode::timeout);
  CHECK(status.peer() == 1);
}

}  // namespace rueda::test::transport_conformance_test
