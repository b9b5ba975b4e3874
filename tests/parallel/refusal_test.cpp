// MPI does not provide the world that the launcher promised: init() refuses to train alone.
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ranks/rank_main.h"

using namespace rueda;
using namespace rueda::test;

namespace {

// The error of open_bootstrap() with `changes` to the environment.
std::string refusal(const std::map<std::string, std::string>& changes,
                    const Options& options = {}) {
  const Environment environment = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = changes.find(std::string(name));
    return found == changes.end() ? process_environment()(name) : found->second;
  };
  const Status status = open_bootstrap(options, environment).status();
  expect(status.code() == ErrorCode::initialization, "refused: " + status.to_string());
  return status.to_string();
}

}  // namespace

int main() {
  return rank_main([] {
    // First, before MPI is initialised: components of another MPI would end the process.
    const std::string prefix = refusal({{"OPAL_PREFIX", "/another/mpi"}});
    expect_contains(prefix, "OPAL_PREFIX=/another/mpi");
    expect_contains(prefix, mpi_location().library);

    const std::string size = refusal({{"OMPI_COMM_WORLD_SIZE", "4"}});
    expect_contains(size, "started 4 ranks");
    expect_contains(size, "world has 1");
    expect_contains(size, mpi_location().version);

    Options by_mpi;
    by_mpi.bootstrap = "mpi";
    const std::map<std::string, std::string> torchrun{
        {"TORCHELASTIC_RUN_ID", "a"}, {"RANK", "1"}, {"WORLD_SIZE", "3"}};
    expect_contains(refusal(torchrun, by_mpi), "torchrun started 3 ranks");
    // MPI runs by now, but that alone does not prove that its world is the intended one.
    expect_contains(refusal(torchrun), "torchrun started 3 ranks");

    OpenedBootstrap world = open_world();
    expect(world.bootstrap->size() == 1, "the world that was started is formed");
    world.bootstrap.reset();
    world.mpi->finalize();
  });
}
