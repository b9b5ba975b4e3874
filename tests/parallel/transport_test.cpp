// The conformance suite over the plug-in's transport, each case on a duplicate of its own: making
// and closing many is tested along the way.
#include "rank_main.h"
#include "transport_conformance.h"

using namespace rueda;
using namespace rueda::test;

int main() {
  return rank_main([] {
    OpenedBootstrap world = open_world();
    expect(world.launch.kind == LaunchKind::mpi, "mpirun is recognised");
    expect(world.launch.size == world.bootstrap->size(), "mpirun's size is MPI's");
    expect(world.launch.rank == world.bootstrap->rank(), "mpirun's rank is MPI's");
    for (const ConformanceCase& each : conformance_cases()) {
      const auto transport = value_of(world.mpi_transport.make_transport(), "make_transport");
      ConformanceRank self{*transport,
                           [&] { expect_ok(world.bootstrap->barrier(soon()), each.name); }};
      try {
        each.run(self);
      } catch (const std::exception& error) {
        throw std::runtime_error(str("rank ", self.rank(), ", ", each.name, ": ", error.what()));
      }
    }
    world.mpi->finalize();
    expect(world.mpi->finalized(), "MPI is finalised by who initialised it");
  });
}
