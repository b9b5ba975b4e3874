// The key-value store over MPI, and a rank that comes too late.
#include <chrono>
#include <string>
#include <thread>

#include "ranks/rank_main.h"

using namespace rueda;
using namespace rueda::test;
using namespace std::chrono_literals;

namespace {

void everyone_sees_everything(Bootstrap& world) {
  for (int round = 0; round < 20; ++round) {
    const auto key = [round](int rank) { return str("key ", round, " of ", rank); };
    const auto value = [round](int rank) {
      return std::string(static_cast<std::size_t>(1000 * rank * (round % 3)), 'x') + '\0' +
             str(rank);
    };
    expect_ok(world.put(key(world.rank()), value(world.rank())), "put");
    expect(!world.put(key(world.rank()), "again").ok(), "a key is written once");
    expect(!world.get(key(world.rank())).ok(), "nothing is seen before the barrier");
    expect_ok(world.barrier(soon()), "barrier");
    for (int rank = 0; rank < world.size(); ++rank) {
      expect(value_of(world.get(key(rank)), "get") == value(rank), str("the value of rank ", rank));
    }
  }
  const Status missing = world.get("never put").status();
  expect(missing.code() == ErrorCode::initialization, "an unknown key is an error");
  expect_contains(missing.to_string(), "never put");
}

void one_rank_is_late(Bootstrap& world) {
  if (world.rank() == 0) {
    const Status status = world.barrier(Clock::now() + 50ms);
    expect(status.code() == ErrorCode::initialization, "the deadline is an error");
    expect_contains(status.to_string(), str("bootstrap of ", world.size(), " ranks"));
    expect(world.barrier(soon()).to_string() == status.to_string(), "and stays one");
  } else {
    std::this_thread::sleep_for(300ms);
  }
}

}  // namespace

int main() {
  return rank_main([] {
    OpenedBootstrap world = open_world();
    everyone_sees_everything(*world.bootstrap);
    // A second one, as after shutdown() and init(), has no keys of the first.
    world.bootstrap.reset();
    world = open_world();
    expect(!world.bootstrap->get("key 0 of 0").ok(), "a new bootstrap is empty");
    everyone_sees_everything(*world.bootstrap);
    if (world.bootstrap->size() > 1) one_rank_is_late(*world.bootstrap);
    world.bootstrap.reset();
    world.mpi->finalize();
  });
}
