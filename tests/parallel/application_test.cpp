// The application initialises MPI itself, at the thread level given as argument, and finalises it
// before Rueda has finished with it.
#include <mpi.h>

#include <array>
#include <cstring>
#include <thread>

#include "ranks/rank_main.h"
#include "ranks/transport_conformance.h"

using namespace rueda;
using namespace rueda::test;

namespace {

struct Level {
  const char* name;
  int value;
};
constexpr std::array levels{Level{"MPI_THREAD_SINGLE", MPI_THREAD_SINGLE},
                            Level{"MPI_THREAD_FUNNELED", MPI_THREAD_FUNNELED},
                            Level{"MPI_THREAD_SERIALIZED", MPI_THREAD_SERIALIZED},
                            Level{"MPI_THREAD_MULTIPLE", MPI_THREAD_MULTIPLE}};

void expect_refused(const OpenedBootstrap& world, const Level& level) {
  expect(!world.mpi_transport.make_transport, "no transport below MPI_THREAD_MULTIPLE");
  const Status& reason = world.mpi_transport.unavailable;
  expect(reason.code() == ErrorCode::unsupported, "the reason's code");
  expect_contains(reason.to_string(), str("the application initialised MPI with ", level.name));
}

void initialise_in_another_thread(MpiPlugin& mpi, const Level& level) {
  Status status;
  std::thread([&] { status = mpi.initialize(); }).join();
  const bool allowed = level.value >= MPI_THREAD_SERIALIZED;
  expect(status.ok() == allowed, str("init() in another thread: ", status.to_string()));
  if (!allowed) expect_contains(status.to_string(), level.name);
}

// What a transport and init() report after MPI is finalised.
void after_finalize(MpiPlugin& mpi, Transport* transport, const Ticket& pending) {
  expect(mpi.finalized() && mpi.initialized(), "MPI is finalised");
  mpi.finalize();  // not initialised by the plug-in, and already finalised
  const Status again = mpi.initialize();
  expect(again.code() == ErrorCode::initialization, "MPI cannot come back");
  expect_contains(again.to_string(), "finalised");
  expect(!mpi.make_bootstrap(soon()).ok() && !mpi.make_transport(soon()).ok(), "nothing is made");
  if (transport == nullptr) return;
  expect(wait_for(*transport, pending).code() == ErrorCode::transport, "a pending receive fails");
  expect_contains(pending->status.to_string(), "finalised");
  std::byte byte{};
  const Ticket later = transport->send(0, {.sequence = 1}, std::array{ConstBytes(&byte, 1)});
  expect(later->done && !later->status.ok(), "a later send fails");
}

}  // namespace

int main(int count, char** arguments) {
  return rank_main([&] {
    expect(count == 2, "one argument: the thread level");
    Level level{};
    for (const Level& each : levels) {
      if (std::strcmp(each.name, arguments[1]) == 0) level = each;
    }
    expect(level.name != nullptr, "the thread level is known");
    int provided = -1;
    MPI_Init_thread(nullptr, nullptr, level.value, &provided);
    expect(provided == level.value, "MPI gives the level that was asked for");
    MPI_Errhandler before = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);

    OpenedBootstrap first = open_world();
    OpenedBootstrap world = open_world();  // a second one; both are usable
    expect(first.mpi == world.mpi, "there is one plug-in");
    expect_ok(first.bootstrap->barrier(soon()), "barrier of the first");
    expect_ok(world.bootstrap->barrier(soon()), "barrier of the second");
    MPI_Errhandler after = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &after);
    expect(before == after, "the application keeps its error handler");
    initialise_in_another_thread(*world.mpi, level);

    std::unique_ptr<Transport> transport;
    Ticket pending;
    std::byte byte{};
    if (level.value < MPI_THREAD_MULTIPLE) {
      expect_refused(world, level);
    } else {
      transport = value_of(world.mpi_transport.make_transport(), "make_transport");
      pending = transport->recv(0, {.sequence = 1}, std::array{MutableBytes(&byte, 1)});
    }
    world.mpi->finalize();
    expect(!world.mpi->finalized(), "MPI is left to the application that initialised it");

    bool told = false;
    world.mpi->before_finalize([] {});
    world.mpi->before_finalize([&] { told = !world.mpi->finalized(); });
    MPI_Finalize();
    expect(told, "MPI_Finalize tells Rueda while MPI still works");
    after_finalize(*world.mpi, transport.get(), pending);
  });
}
