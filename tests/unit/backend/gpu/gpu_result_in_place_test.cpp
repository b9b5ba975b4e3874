// Results written to memory of the caller: if the size fits, without memory of the engine;
// otherwise as if none had been given.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ranks/gpu_engine_ranks.h"

namespace rueda::test::gpu_result_in_place_test {
namespace {

GpuWorld world_of(int size, const std::string& backend) {
  GpuWorld world;
  world.size = size;
  world.options.gpu_backend = backend;
  return world;
}

Submission into(Submission submission, std::byte* data, std::size_t bytes) {
  submission.output = data;
  submission.request.output_bytes = bytes;
  return submission;
}

}  // namespace

TEST_CASE("results are written where the caller wants them") {
  const NcclFixture fixture({}, 5);
  const int size = GENERATE(1, 3);
  const std::string backend = GENERATE("nccl", "staged");
  INFO(backend << ", " << size << " ranks");
  run_gpu_engines(world_of(size, backend), [&](GpuEngine& gpu) {
    constexpr std::size_t count = 1000;
    const auto all = static_cast<std::size_t>(size) * count;
    const auto rows = static_cast<std::int64_t>(count);
    const auto total = static_cast<std::int64_t>(all);
    for (int round = 0; round < 4; ++round) {  // later rounds are replayed
      const auto own = filled<float>(count, gpu.rank());
      std::vector<float> gathered;
      for (int rank = 0; rank < size; ++rank) {
        const auto part = filled<float>(count, rank);
        gathered.insert(gathered.end(), part.begin(), part.end());
      }
      const DeviceMemory input = gpu.tensor(own);
      const DeviceMemory room = gpu.tensor(std::vector<float>(all, -1));
      const auto gather = [&](const char* name, std::byte* data, std::size_t bytes) {
        return gpu.submit(
            into(gpu.submission(Collective::allgather, input, {rows}, DataType::float32, name),
                 data, bytes));
      };
      const Handle exact = gather("exact", room.data(), 4 * all);
      gpu.finish(exact);
      expect(exact.output().data == nullptr, "the engine allocates nothing");
      expect(exact.output().shape == Shape{total}, "the shape is told");
      expect(gpu.read<float>(room.data(), all) == gathered, "gathered");

      // Memory of another size stays untouched.
      const DeviceMemory small = gpu.tensor(std::vector<float>(all, -1));
      const Handle other = gather("other", small.data(), 4 * all - 4);
      gpu.finish(other);
      expect(gpu.read<float>(other.output().data.get(), all) == gathered, "in other memory");
      expect(gpu.read<float>(small.data(), all) == std::vector<float>(all, -1), "left alone");

      // The input may already lie at its place in the output.
      const DeviceMemory place = gpu.tensor(std::vector<float>(all, -1));
      std::byte* const mine = place.data() + 4 * count * static_cast<std::size_t>(gpu.rank());
      expect_ok(copy_on_device(gpu.stream(), mine, input.data(), 4 * count), "copy");
      Submission within =
          gpu.submission(Collective::allgather, input, {rows}, DataType::float32, "within");
      within.input = mine;
      gpu.finish(gpu.submit(into(std::move(within), place.data(), 4 * all)));
      expect(gpu.read<float>(place.data(), all) == gathered, "gathered in place");

      const DeviceMemory wide = gpu.tensor(filled<float>(all, gpu.rank()));
      const DeviceMemory part = gpu.tensor(std::vector<float>(count, -1));
      const Handle scattered = gpu.submit(into(
          gpu.submission(Collective::reduce_scatter, wide, {total}, DataType::float32, "scatter"),
          part.data(), 4 * count));
      gpu.finish(scattered);
      expect(scattered.output().data == nullptr, "the engine allocates nothing");
      const auto sum = summed<float>(all, size);
      const auto begin = sum.begin() + static_cast<std::ptrdiff_t>(count) * gpu.rank();
      expect(gpu.read<float>(part.data(), count) ==
                 std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(count)),
             "scattered");

      const DeviceMemory arrived = gpu.tensor(std::vector<float>(all, -1));
      Submission exchange =
          gpu.submission(Collective::alltoall, wide, {total}, DataType::float32, "exchange");
      exchange.rows.assign(static_cast<std::size_t>(size), rows);
      const Handle exchanged = gpu.submit(into(std::move(exchange), arrived.data(), 4 * all));
      gpu.finish(exchanged);
      expect(exchanged.output().data == nullptr, "the engine allocates nothing");
      expect(exchanged.output().received_splits ==
                 std::vector<std::int64_t>(static_cast<std::size_t>(size), rows),
             "the splits are told");
      std::vector<float> rows_of_all;
      for (int rank = 0; rank < size; ++rank) {
        const auto sent = filled<float>(all, rank);
        const auto first = sent.begin() + static_cast<std::ptrdiff_t>(count) * gpu.rank();
        rows_of_all.insert(rows_of_all.end(), first, first + static_cast<std::ptrdiff_t>(count));
      }
      expect(gpu.read<float>(arrived.data(), all) == rows_of_all, "exchanged");
      gpu.drain();
    }
  });
}

}  // namespace rueda::test::gpu_result_in_place_test
