#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <thread>

#include "membership/bootstrap_rendezvous.h"
#include "membership/host.h"
#include "membership/rendezvous_store.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"
#include "transport/socket.h"
#include "unit/contains.h"

namespace rueda::test::bootstrap_test {

namespace {

using BootstrapPtr = std::unique_ptr<Bootstrap>;
using Make = std::function<BootstrapPtr(int rank)>;

std::string fresh_unix() {
  return "unix:@rueda-test-" + random_name();
}
// An address with a port that was just free.
std::string fresh_tcp() {
  const auto listener = listen_on("tcp:127.0.0.1:0");
  REQUIRE(listener.ok());
  return listener.value().address;
}

BootstrapPtr enter(const std::string& address, int rank, int size) {
  auto entered = connect_rendezvous(address, rank, size, soon(), "known to these ranks alone");
  expect_ok(entered.status(), "entering the rendezvous");
  return std::move(entered).value();
}

void on_every_kind(int size, const std::function<void(Bootstrap&)>& body) {
  InprocHub hub(size);
  const std::string local = fresh_unix();
  const std::string tcp = fresh_tcp();
  const std::vector<std::pair<const char*, Make>> kinds{
      {"inproc", [&](int rank) { return hub.make_bootstrap(rank); }},
      {"unix", [&](int rank) { return enter(local, rank, size); }},
      {"tcp", [&](int rank) { return enter(tcp, rank, size); }}};
  for (const auto& [name, make] : kinds) {
    DYNAMIC_SECTION(name << " with " << size << " ranks") {
      run_ranks(size, [&, &make = make](int rank) { body(*make(rank)); });
    }
  }
}

}  // namespace

TEST_CASE("what was put before a barrier is got after it") {
  for (const int size : {1, 2, 5}) {
    on_every_kind(size, [](Bootstrap& self) {
      const std::string binary("\0\n=\xff", 4);
      for (int round = 0; round < 3; ++round) {
        expect_ok(self.put(str(round, "/", self.rank()), str(self.rank() * 10 + round)), "put");
        if (self.rank() == 0) expect_ok(self.put(str("binary", round), binary), "put");
        expect_ok(self.barrier(soon()), "barrier");
        for (int peer = 0; peer < self.size(); ++peer) {
          const auto value = self.get(str(round, "/", peer));
          expect_ok(value.status(), "get");
          expect(value.value() == str(peer * 10 + round), "the value of rank " + str(peer));
        }
        expect(self.get(str("binary", round)).value() == binary, "bytes of any kind");
      }
      expect(self.get("nothing").status().code() == ErrorCode::initialization, "no such key");
    });
  }
}

TEST_CASE("a key is put once") {
  on_every_kind(1, [](Bootstrap& self) {
    expect_ok(self.put("key", "a"), "put");
    expect(self.put("key", "b").code() == ErrorCode::initialization, "putting again fails");
    expect(self.get("key").value() == "a", "the first value stays");
  });
}

TEST_CASE("a large value travels") {
  on_every_kind(2, [](Bootstrap& self) {
    const std::string value(3 << 20, 'x');
    if (self.rank() == 1) expect_ok(self.put("key", value), "put");
    expect_ok(self.barrier(soon()), "barrier");
    expect(self.get("key").value() == value, "the value");
  });
}

TEST_CASE("a barrier names those it waited for") {
  InprocHub barriers(4);
  on_every_kind(4, [&](Bootstrap& self) {
    const auto meanwhile = barriers.make_bootstrap(self.rank());
    if (self.rank() == 0 || self.rank() == 2) {
      const Status status = self.barrier(Clock::now() + std::chrono::milliseconds(100));
      expect(status.code() == ErrorCode::initialization, status.to_string());
      expect(contains(status, "ranks 1 and 3") || contains(status, "ranks 1-3") ||
                 contains(status, "ranks 0, 1 and 3") || contains(status, "left"),
             status.to_string());
    }
    expect_ok(meanwhile->barrier(soon()), "end");
  });
}

TEST_CASE("a rank that leaves fails the barrier of the others at once") {
  const std::string address = fresh_unix();
  run_ranks(3, [&](int rank) {
    const auto self = enter(address, rank, 3);
    expect_ok(self->barrier(soon()), "first barrier");
    if (rank == 2) return;
    const Status status = self->barrier(soon());
    expect(status.code() == ErrorCode::initialization && contains(status, "left"),
           status.to_string());
  });
}

TEST_CASE("where the store is served already, rank 0 enters it as the others do") {
  const std::string secret = "known to these ranks alone";
  auto listener = listen_on(fresh_unix());
  REQUIRE(listener.ok());
  const std::string address = listener->address;
  const RendezvousStore store(std::move(listener).value(), 3, secret);
  run_ranks(3, [&](int rank) {
    const auto self = enter_rendezvous(address, rank, 3, soon(), secret);
    expect_ok(self.status(), "entering the rendezvous");
    const auto all = self.value()->allgather("key", str(rank), soon());
    expect(all.ok() && *all == std::vector<std::string>{"0", "1", "2"}, "what all have put");
  });
  const auto nobody = enter_rendezvous(fresh_unix(), 0, 1, Clock::now(), secret);
  CHECK(contains(nobody.status(), "served by the launcher"));
}

TEST_CASE("entering a rendezvous that nobody serves fails at the deadline") {
  const Time deadline = Clock::now() + std::chrono::milliseconds(100);
  const auto entered = connect_rendezvous(fresh_unix(), 1, 2, deadline);
  CHECK(entered.status().code() == ErrorCode::initialization);
  CHECK(contains(entered.status(), "rank 1"));
}

TEST_CASE("an address that is none is refused at once") {
  for (const char* address : {"", "host:1", "unix:/tmp/x"}) {
    CHECK(contains(connect_rendezvous(address, 0, 1, soon()).status(), "not a rendezvous address"));
  }
  CHECK_FALSE(connect_rendezvous(fresh_unix(), 2, 2, soon()).ok());
}

TEST_CASE("ranks that were told different sizes learn of it") {
  const std::string address = fresh_unix();
  const auto first = enter(address, 0, 3);
  const auto second = connect_rendezvous(address, 1, 4, soon(), "known to these ranks alone");
  CHECK(second.status().code() == ErrorCode::initialization);
  CHECK(contains(second.status(), "rank 1 on " + host_name() + " was rejected"));
  CHECK(contains(second.status(), "that there are 4 ranks, rank 0 on " + host_name()));
}

TEST_CASE("a rank that was given another secret says which it is, and where") {
  const std::string address = fresh_unix();
  const auto first = enter(address, 0, 2);
  const auto second = connect_rendezvous(address, 1, 2, soon(), "known to this rank alone");
  CHECK(second.status().code() == ErrorCode::initialization);
  CHECK(contains(second.status(), "another secret (RUEDA_SECRET) than rank 1 on " + host_name()));
}

TEST_CASE("a store at several addresses serves one world") {
  const std::string secret = "known to these ranks alone";
  std::vector<Listener> listeners;
  std::vector<std::string> addresses;
  for (const std::string& where : {fresh_unix(), std::string("tcp:127.0.0.1:0")}) {
    auto listener = listen_on(where);
    REQUIRE(listener.ok());
    addresses.push_back(listener->address);
    listeners.push_back(std::move(listener).value());
  }
  const RendezvousStore store(std::move(listeners), 4, secret);
  run_ranks(4, [&](int rank) {
    const auto self =
        enter_rendezvous(addresses[static_cast<std::size_t>(rank) % 2], rank, 4, soon(), secret);
    expect_ok(self.status(), "entering the rendezvous");
    const auto all = self.value()->allgather("key", str(rank), soon());
    expect(all.ok() && all->size() == 4, "what all have put");
  });
}

TEST_CASE("a host's own addresses are no loopbacks, and no other host's") {
  for (const char* other : {"unix:@x", "tcp:1", "tcp:127.0.0.1:7", "tcp:[::1]:7",
                            "tcp:203.0.113.7:7", "tcp:no-such-host.invalid:7"}) {
    CHECK(own_addresses_of(other).empty());
  }
  const auto own = reachable_address("");
  REQUIRE(own.ok());
  if (*own == "127.0.0.1") return;                  // there is no other interface
  const auto taken = listen_on(join_tcp(*own, 0));  // it is still this host's
  REQUIRE(taken.ok());
  CHECK(own_addresses_of(taken->address) == std::vector<std::string>{taken->address});
}

TEST_CASE("a rank number cannot be taken twice") {
  const std::string address = fresh_unix();
  const auto first = enter(address, 0, 2);
  const auto second = enter(address, 1, 2);
  const auto twin = connect_rendezvous(address, 1, 2, Clock::now() + std::chrono::milliseconds(500),
                                       "known to these ranks alone");
  CHECK(contains(twin.status(), "another process is rank 1"));
}

TEST_CASE("an address serves one world after the other") {
  for (const std::string& address : {fresh_unix(), fresh_tcp()}) {
    run_ranks(3, [&](int rank) {
      for (int world = 0; world < 10; ++world) {
        const auto self = enter(address, rank, 3);
        expect_ok(self->put(str("rank", rank), str(world)), "put");
        expect_ok(self->barrier(soon()), "barrier");
        for (int peer = 0; peer < 3; ++peer) {
          expect(self->get(str("rank", peer)).value() == str(world), "a value of this world");
        }
      }
    });
  }
}

TEST_CASE("rank 0 serves at a listener that it has inherited, one world after the other") {
  for (const char* any_port : {"tcp:127.0.0.1:0", "tcp:[::1]:0"}) {
    auto listener = listen_on(any_port);
    REQUIRE(listener.ok());
    const std::string address = listener.value().address;
    const int descriptor = listener.value().fd.get();
    run_ranks(2, [&](int rank) {
      for (int world = 0; world < 3; ++world) {
        auto self = connect_rendezvous(address, rank, 2, soon(), "known to these ranks alone",
                                       rank == 0 ? descriptor : -1);
        expect_ok(self.status(), "entering the rendezvous");
        expect_ok(self.value()->barrier(soon()), "barrier");
      }
    });
    CHECK(listen_on(address).status().code() == ErrorCode::transport);  // the port is still in use
    CHECK((::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  }
}

TEST_CASE("a descriptor that does not listen at the address is left alone") {
  const std::string address = fresh_tcp();
  const auto other = listen_on("tcp:127.0.0.1:0");
  const auto local = listen_on(fresh_unix());
  const UniqueFd file(::open("/dev/null", O_RDONLY));
  for (const int descriptor :
       {other.value().fd.get(), local.value().fd.get(), file.get(), 1 << 20, -1}) {
    const int flags = ::fcntl(descriptor, F_GETFD);
    const auto self =
        connect_rendezvous(address, 0, 1, soon(), "known to these ranks alone", descriptor);
    CHECK(self.ok());
    CHECK(::fcntl(descriptor, F_GETFD) == flags);
  }
}

}  // namespace rueda::test::bootstrap_test
