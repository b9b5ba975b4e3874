#include "transport_conformance.h"

#include <catch2/catch.hpp>
#include <memory>

#include "transport/inproc.h"

namespace rueda::test {

namespace {

using MakeTransport = std::function<std::unique_ptr<Transport>(Bootstrap&, InprocHub&)>;

struct Kind {
  const char* name;
  MakeTransport make;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"inproc",
       [](Bootstrap& bootstrap, InprocHub& hub) { return hub.make_transport(bootstrap.rank()); }},
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
          run_ranks(size, [&](int rank) {
            const auto bootstrap = hub.make_bootstrap(rank);
            const auto barrier = [&] { expect_ok(bootstrap->barrier(soon()), "barrier"); };
            const auto transport = kind.make(*bootstrap, hub);
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
