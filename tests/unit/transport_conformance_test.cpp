#include "transport_conformance.h"

#include <catch2/catch.hpp>
#include <memory>

#include "transport/inproc.h"
#include "transport/shm.h"

namespace rueda::test {

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

}  // namespace rueda::test
