// Collectives of several hosts over MPI, by the algorithm given as argument: results and message
// counts. The ranks play three hosts of two ranks each, which share memory.
#include <cstring>
#include <string>
#include <vector>

#include "onehost/host_group.h"
#include "ranks/engine_ranks.h"
#include "ranks/rank_main.h"
#include "transport/group_bootstrap.h"

using namespace rueda;
using namespace rueda::test;

namespace {

constexpr int ranks_per_host = 2;
constexpr int forming_barriers = 3;

// Formed over MPI alone; then the ranks of each host share memory.
World world_of_hosts(OpenedBootstrap& opened, Options options) {
  options.transport = "mpi";
  World world =
      value_of(form_world(*opened.bootstrap, options, opened.mpi_transport), "form_world");
  std::vector<int> ranks;
  std::vector<int> host_of;
  for (int rank = 0; rank < opened.bootstrap->size(); ++rank) {
    ranks.push_back(rank);
    host_of.push_back(rank / ranks_per_host);
  }
  world.topology.host_of = host_of;
  GroupBootstrap bootstrap(*opened.bootstrap, ranks, "hosts that ranks play", forming_barriers);
  world.host = value_of(HostGroup::form(bootstrap, host_of, soon()), "the ranks of a host");
  expect_ok(bootstrap.finish(soon()), "all hosts");
  expect(world.host.memory() != nullptr, "the ranks of a host share memory");
  world.transport = value_of(join_host(world.host, std::move(world.transport)), "joining");
  expect(world.transport->name() == "shm+mpi", std::string(world.transport->name()));
  return world;
}

// Whole numbers, so that sums are exact in any order.
float value(int rank, std::size_t index) {
  return static_cast<float>((rank + 1) * 1000 + static_cast<int>(index % 1000));
}

void reduce(Runtime& engine, int rank, int size, std::size_t count) {
  std::vector<float> tensor(count);
  for (std::size_t i = 0; i < count; ++i) tensor[i] = value(rank, i);
  finish(submit(engine, allreduce_of(tensor, DataType::float32, str(count, " elements"))));
  for (std::size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int other = 0; other < size; ++other) sum += value(other, i);
    expect(tensor[i] == sum, str("element ", i, " of ", count));
  }
}

std::int64_t rows_between(int sender, int receiver, std::int64_t scale) {
  return (sender * 3 + receiver * 5) % 4 * scale;
}

// Each row repeats one number, which encodes the sender and the receiver.
void exchange(Runtime& engine, int rank, int size, std::int64_t scale) {
  std::vector<std::int32_t> input;
  std::vector<std::int32_t> expected;
  Submission submission;
  for (int other = 0; other < size; ++other) {
    submission.rows.push_back(rows_between(rank, other, scale));
    input.insert(input.end(), static_cast<std::size_t>(submission.rows.back()), rank * 100 + other);
    expected.insert(expected.end(), static_cast<std::size_t>(rows_between(other, rank, scale)),
                    other * 100 + rank);
  }
  submission.request.name = str("rows times ", scale);
  submission.request.collective = Collective::alltoall;
  submission.request.dtype = DataType::int32;
  submission.request.shape = {static_cast<std::int64_t>(input.size()), 1};
  submission.input = reinterpret_cast<const std::byte*>(input.data());
  const Handle handle = submit(engine, std::move(submission));
  finish(handle);
  const std::byte* const received = handle.state()->output.data.get();
  expect(expected.empty() ||
             std::memcmp(received, expected.data(), expected.size() * sizeof expected[0]) == 0,
         str("rows times ", scale));
}

// The sum over all ranks since the engine started.
std::int64_t sent_by_all(Bootstrap& bootstrap, std::int64_t sent) {
  std::int64_t all = 0;
  for (const std::string& each :
       value_of(bootstrap.allgather("sent", str(sent), soon()), "what all have sent")) {
    all += std::stoll(each);
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  return rank_main([&] {
    const std::string algorithm = argc > 1 ? argv[1] : "";
    const bool reduces = algorithm == "tree" || algorithm == "doubling" || algorithm == "halving";
    Options options;
    options.algorithm = algorithm;
    OpenedBootstrap opened = open_world();
    const int rank = opened.bootstrap->rank();
    const int size = opened.bootstrap->size();
    expect(size == 3 * ranks_per_host, "three hosts");
    {
      const auto engine =
          value_of(Runtime::start(world_of_hosts(opened, options), options), "Runtime::start");
      // tree: two trees of two edges, both ways; doubling, halving: a pair that exchanges once or
      // twice, and a third host that asks and is answered; gathered, pairwise: row counts from each
      // host to each rank elsewhere, or from each rank to each other.
      const std::int64_t expected = algorithm == "tree"       ? 8
                                    : algorithm == "doubling" ? 4
                                    : algorithm == "halving"  ? 6
                                    : algorithm == "gathered" ? 12
                                                              : 30;
      reduces ? reduce(*engine, rank, size, 1021) : exchange(*engine, rank, size, 0);
      const std::int64_t sent = sent_by_all(
          *opened.bootstrap,
          metric(*engine, reduces ? "allreduce_messages_sent" : "alltoall_messages_sent"));
      expect(sent == expected, str(sent, " messages"));
      for (const int scale : {1, 2, 1000, 100'003}) {
        reduces ? reduce(*engine, rank, size, static_cast<std::size_t>(scale))
                : exchange(*engine, rank, size, scale);
      }
      expect_ok(opened.bootstrap->barrier(soon()), "all have what they wait for");
    }
    opened.mpi->finalize();
  });
}
