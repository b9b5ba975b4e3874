// Messages that travel in several pieces, with pieces of 1000 bytes instead of 1 GiB.
#include <cstddef>
#include <vector>

#include "mpi/plugin.h"
#include "mpi/transport.h"
#include "ranks/rank_main.h"
#include "ranks/transport_conformance.h"

using namespace rueda;
using namespace rueda::test;

namespace {

constexpr std::size_t piece = 1000;

void lengths_around_a_piece(ConformanceRank& self) {
  const int peer = self.size() - 1 - self.rank();
  for (const std::size_t size : {piece - 1, piece, piece + 1, 2 * piece, 5 * piece + 17}) {
    const Bytes sent = pattern(size, 1);
    Bytes received(size);
    finish_all(self, {receive(self, peer, 1, received), send(self, peer, 1, sent)});
    expect(received == sent, str("bytes of ", size));
  }
}

// Long and short messages alternate in one stream and start together: none overtakes another.
void long_and_short_in_one_stream(ConformanceRank& self) {
  const int peer = self.size() - 1 - self.rank();
  const std::vector<std::size_t> sizes{10, 3 * piece, 20, 30, piece, 0, 2 * piece + 1, 40};
  std::vector<Bytes> sent;
  std::vector<Bytes> received;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sent.push_back(pattern(sizes[i], static_cast<std::uint32_t>(i)));
    received.emplace_back(sizes[i]);
  }
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tickets.push_back(receive(self, peer, 1, received[i]));
    tickets.push_back(send(self, peer, 1, sent[i]));
  }
  finish_all(self, tickets);
  expect(received == sent, "bytes of a mixed stream");
}

void shorter_than_expected(ConformanceRank& self) {
  const int peer = self.size() - 1 - self.rank();
  const Bytes sent = pattern(2 * piece + 5, 1);
  Bytes received(4 * piece);
  const Ticket in = receive(self, peer, 1, received);
  const Ticket out = send(self, peer, 1, sent);
  const Status status = self.wait(in);
  expect(status.code() == ErrorCode::transport, "too short a message fails");
  expect_contains(status.to_string(), "2005 bytes");
  expect_contains(status.to_string(), "receiving 4000 bytes");
  Bytes next(2 * piece + 5);
  finish_all(self, {out, receive(self, peer, 1, next), send(self, peer, 1, sent)});
  expect(next == sent, "what comes after a short message is not harmed");
}

void longer_than_expected(ConformanceRank& self) {
  const int peer = self.size() - 1 - self.rank();
  const Bytes sent = pattern(2 * piece + 5, 1);
  const Bytes small = pattern(7, 2);
  Bytes received(7);
  Bytes next(7);
  const Ticket in = receive(self, peer, 1, received);
  const Ticket after = receive(self, peer, 1, next);
  const std::vector<Ticket> sends{send(self, peer, 1, sent), send(self, peer, 1, small)};
  const Status status = self.wait(in);
  expect(status.code() == ErrorCode::transport, "too long a message fails");
  expect_contains(status.to_string(), "2005 bytes");
  expect_contains(status.to_string(), "receiving 7 bytes");
  // The rest of the long message is not taken for the next one.
  finish_all(self, {after, sends[0], sends[1]});
  expect(next == small, "what comes after a long message is not harmed");
}

// MPI moves some of what it has reported as done only while it is called, so that a rank that is
// done itself has to look at it for its peers.
void looks_when_nothing_is_in_flight(ConformanceRank& self) {
  Transport& transport = self.transport;
  const int peer = self.size() - 1 - self.rank();
  expect(!transport.next_look(), "no look before there was anything");
  const Bytes sent = pattern(piece / 2, 1);
  Bytes received(piece / 2);
  finish_all(self, {receive(self, peer, 1, received), send(self, peer, 1, sent)});
  await([&] { return transport.progress(), !transport.requires_polling(); }, "all is done");
  const auto first = transport.next_look();
  expect(first.has_value(), "a look is due");
  transport.progress();
  expect(transport.next_look() == first, "it is not made before its time");
  await([&] { return Clock::now() >= *first; }, "it is due");
  transport.progress();
  const auto second = transport.next_look();
  expect(second && *second > Clock::now(), "it is made, and another follows");
  const Ticket in = receive(self, peer, 1, received);
  transport.progress();
  expect(in->done || !transport.next_look(), "no looks while a receive is polled for anyway");
  finish_all(self, {in, send(self, peer, 1, sent)});
}

}  // namespace

int main() {
  return rank_main([] {
    mpi::Plugin plugin;
    expect_ok(plugin.initialize(), "initialize");
    const auto bootstrap = value_of(plugin.make_bootstrap(soon()), "make_bootstrap");
    for (const auto& run :
         {lengths_around_a_piece, long_and_short_in_one_stream, vectored, all_to_all,
          shorter_than_expected, longer_than_expected, looks_when_nothing_is_in_flight}) {
      mpi::MpiTransport transport(
          value_of(mpi::Communicator::duplicate_world(soon(), "test"), "duplicate_world"), piece);
      ConformanceRank self(transport, [&] { expect_ok(bootstrap->barrier(soon()), "barrier"); });
      run(self);
      self.barrier();
    }
    plugin.finalize();
  });
}
