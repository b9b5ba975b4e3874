// The conformance suite on the plug-in's transport, each case on its own duplicate, which also
// tests making and closing many. Then on memory and MPI in one world, whose ranks play two hosts.
#include <numeric>

#include "onehost/host_group.h"
#include "ranks/rank_main.h"
#include "ranks/transport_conformance.h"
#include "transport/group_bootstrap.h"

using namespace rueda;
using namespace rueda::test;

namespace {

constexpr int forming_barriers = 3;

void run_cases(OpenedBootstrap& world, const std::string& kind,
               const std::function<void(const ConformanceCase&)>& run) {
  for (const ConformanceCase& each : conformance_cases()) {
    try {
      run(each);
    } catch (const std::exception& error) {
      throw std::runtime_error(
          str("rank ", world.bootstrap->rank(), ", ", kind, ", ", each.name, ": ", error.what()));
    }
  }
}

std::function<void()> barrier_of(OpenedBootstrap& world) {
  return [&world] { expect_ok(world.bootstrap->barrier(soon()), "barrier"); };
}

// Ranks alternate between two hosts, which share new memory under each name.
HostGroup host_of(OpenedBootstrap& world, const std::string& name) {
  std::vector<int> ranks(static_cast<std::size_t>(world.bootstrap->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> hosts(ranks.size());
  std::transform(ranks.begin(), ranks.end(), hosts.begin(), [](int rank) { return rank % 2; });
  GroupBootstrap bootstrap(*world.bootstrap, ranks, name, forming_barriers);
  HostGroup host = value_of(HostGroup::form(bootstrap, hosts, soon()), "the ranks of a host");
  expect_ok(bootstrap.finish(soon()), "all hosts");
  return host;
}

// Only messages over MPI need polling.
void is_polled_for_mpi_alone(ConformanceRank& self) {
  Bytes nothing;
  for (int round = 0; round < self.size(); ++round) {
    const int peer = self.rank() ^ round;
    const Ticket in = receive(self, peer, 1, nothing);
    const bool is_elsewhere = peer % 2 != self.rank() % 2;
    expect(self.transport.requires_polling() == is_elsewhere, str("waiting for rank ", peer));
    finish_all(self, {send(self, peer, 1, nothing), in});
    expect(!self.transport.requires_polling(), "nothing is under way");
    self.barrier();
  }
}

}  // namespace

int main() {
  return rank_main([] {
    OpenedBootstrap world = open_world();
    expect(world.launch.kind == LaunchKind::mpi, "mpirun is recognised");
    expect(world.launch.size == world.bootstrap->size(), "mpirun's size is MPI's");
    expect(world.launch.rank == world.bootstrap->rank(), "mpirun's rank is MPI's");
    run_cases(world, "MPI", [&](const ConformanceCase& each) {
      const auto transport = value_of(world.mpi_transport.make_transport(), "make_transport");
      ConformanceRank self(*transport, barrier_of(world));
      each.run(self);
    });
    const auto run_linked = [&](const ConformanceCase& each) {
      const HostGroup host = host_of(world, str("hosts for ", each.name));
      auto transport = value_of(world.mpi_transport.make_transport(), "make_transport");
      const auto& memory = host.memory();
      if (memory) transport = value_of(join_host(host, std::move(transport)), "joining");
      const auto barrier = barrier_of(world);
      barrier();
      ConformanceRank self(*transport, barrier,
                           memory ? &memory->header(memory->rank()).wake : nullptr);
      each.run(self);
      barrier();
    };
    run_cases(world, "memory and MPI", run_linked);
    if (world.bootstrap->size() == 4) run_linked({"polling", is_polled_for_mpi_alone});
    world.mpi->finalize();
    expect(world.mpi->finalized(), "MPI is finalised by who initialised it");
  });
}
