// The last rank kills itself while the others wait for it. Under `mpirun --with-ft ulfm` their
// receives fail with peer_lost, and everything can be closed in bounded time.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "ranks/rank_main.h"
#include "ranks/transport_conformance.h"

using namespace rueda;
using namespace rueda::test;

int main() {
  const int code = rank_main([] {
    OpenedBootstrap world = open_world();
    auto transport = value_of(world.mpi_transport.make_transport(), "make_transport");
    const int last = transport->size() - 1;
    expect_ok(world.bootstrap->barrier(soon()), "barrier");
    if (transport->rank() == last) std::raise(SIGKILL);
    Bytes in(8 << 20);
    const Ticket pending = transport->recv(last, {.sequence = 1}, std::array{MutableBytes(in)});
    const Status status = wait_for(*transport, pending);
    expect(status.code() == ErrorCode::peer_lost, "the receive tells: " + status.to_string());
    expect(status.peer() == last, "which rank was lost");
    expect_contains(status.to_string(), str("rank ", last));
    // Once the loss is known, a send fails, too, instead of waiting forever.
    const Ticket sent = transport->send(last, {.sequence = 2}, std::array{ConstBytes(in)});
    expect(wait_for(*transport, sent).code() == ErrorCode::peer_lost, "a later send tells");
    // The survivors still reach each other.
    if (last > 1) {
      const int peer = last - 1 - transport->rank();
      const Bytes out = pattern(300'000, 1);
      Bytes back(300'000);
      const Ticket reply = transport->recv(peer, {.sequence = 3}, std::array{MutableBytes(back)});
      const Ticket request = transport->send(peer, {.sequence = 3}, std::array{ConstBytes(out)});
      expect_ok(wait_for(*transport, reply), "survivors exchange");
      expect_ok(wait_for(*transport, request), "survivors exchange");
      expect(back == out, "bytes between survivors");
    }
    const Ticket other = transport->recv(0, {.sequence = 4}, std::array{MutableBytes(in)});
    transport->abort(status);
    expect(other->done, "abort completes what is pending");
    transport.reset();
    world.bootstrap.reset();
    std::printf("survivor done\n");
    std::fflush(stdout);
  });
  // Skips MPI_Finalize, which needs all ranks.
  std::_Exit(code);
}
