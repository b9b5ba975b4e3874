// Aborting at any moment, then closing and finalising, never waits for another rank.
#include <array>
#include <chrono>
#include <thread>

#include "ranks/rank_main.h"
#include "ranks/transport_conformance.h"

using namespace rueda;
using namespace rueda::test;
using namespace std::chrono_literals;

namespace {

// Receives without sends and sends without receives, one of them above any eager limit.
void abort_alone(OpenedBootstrap& world) {
  const int right = (world.bootstrap->rank() + 1) % world.bootstrap->size();
  auto transport = value_of(world.mpi_transport.make_transport(), "make_transport");
  Bytes in(1000);
  Bytes small(10);
  Bytes large(8 << 20);
  std::vector<Ticket> tickets;
  for (std::uint64_t number = 0; number < 50; ++number) {
    tickets.push_back(transport->recv(right, {.sequence = number}, std::array{MutableBytes(in)}));
  }
  tickets.push_back(transport->send(right, {.sequence = 100}, std::array{ConstBytes(small)}));
  tickets.push_back(transport->send(right, {.sequence = 100}, std::array{ConstBytes(large)}));
  transport->progress();
  if (world.bootstrap->rank() == 0) {
    transport->abort(Status(ErrorCode::peer_lost, "rank 1 is gone", 1));
    for (const Ticket& ticket : tickets) expect(ticket->done, "abort completes everything");
    expect(tickets.front()->status.peer() == 1, "with the reason");
    transport->abort(Status(ErrorCode::internal, "too late"));
    const Ticket later = transport->recv(right, {.sequence = 5}, std::array{MutableBytes(in)});
    expect(later->done && later->status.peer() == 1, "later transfers fail with the first reason");
  }
  transport.reset();  // the others abort by closing
}

}  // namespace

int main() {
  return rank_main([] {
    OpenedBootstrap world = open_world();
    for (int round = 0; round < 3; ++round) abort_alone(world);
    // What was left behind does not disturb the next world.
    const auto transport = value_of(world.mpi_transport.make_transport(), "make_transport");
    ConformanceRank self(*transport,
                         [&] { expect_ok(world.bootstrap->barrier(soon()), "barrier"); });
    all_to_all(self);
    world.mpi->finalize();
  });
}
