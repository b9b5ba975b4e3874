// What a lane of a GPU keeps between operations: the path that its ranks have agreed on, and
// memory.
#include <catch2/catch.hpp>
#include <vector>

#include "backend/gpu/lane_memory.h"
#include "backend/gpu/lane_path.h"
#include "ranks/gpu_engine_ranks.h"
#include "unit/captured_log.h"

namespace rueda::test::gpu_lane_parts_test {
namespace {

std::vector<GpuPeerInfo> cards_of(int ranks, int without_kernels) {
  std::vector<GpuPeerInfo> infos(static_cast<std::size_t>(ranks));
  for (GpuPeerInfo& info : infos) info.has_kernels = true;
  if (without_kernels >= 0) infos[static_cast<std::size_t>(without_kernels)].has_kernels = false;
  return infos;
}

constexpr auto goes_through_memory = "go through host memory, not NCCL: no library";
constexpr auto nccl_cannot = "because NCCL cannot do it";

}  // namespace

TEST_CASE("a lane has kernels where all of its ranks do") {
  const int without = GENERATE(range(-1, 3));
  LanePath path;
  CHECK_FALSE(path.is_chosen());
  path.choose({GpuPath::nccl, "", false}, cards_of(3, without), 1);
  REQUIRE(path.is_chosen());
  CHECK(path.chosen() == GpuPath::nccl);
  CHECK(path.all_have_kernels() == (without < 0));
}

TEST_CASE(
    "a lane's first rank says that its tensors go through memory, unless that was asked for") {
  const bool is_fallback = GENERATE(true, false);
  const int rank = GENERATE(0, 1);
  const CapturedLog log;
  LanePath path;
  path.choose({GpuPath::staged, "no library", is_fallback}, cards_of(2, -1), rank);
  CHECK(path.why_not_nccl() == "no library");
  CHECK(log.lines("warning", goes_through_memory) == (is_fallback && rank == 0 ? 1 : 0));
}

TEST_CASE("a lane's first rank says once that NCCL is passed over, and what lacks kernels") {
  const GpuPath chosen = GENERATE(GpuPath::nccl, GpuPath::staged);
  const int rank = GENERATE(0, 1);
  const int without_kernels = GENERATE(-1, 1);
  const CapturedLog log;
  LanePath path;
  path.choose({chosen, "", false}, cards_of(2, without_kernels), rank);
  for (int operation = 0; operation < 3; ++operation) path.warn_of_staging(rank);
  const bool warns = chosen == GpuPath::nccl && rank == 0;
  CHECK(log.lines("warning", nccl_cannot) == (warns ? 1 : 0));
  CHECK(log.lines("warning", "a rank has no CUDA kernels") ==
        (warns && without_kernels >= 0 ? 1 : 0));
}

TEST_CASE("a lane's staging memory grows, and what it has outgrown stays where it is") {
  const NcclFixture fixture;
  run_gpu_ranks(1, [&](GpuRank& mine) {
    LaneMemory memory;
    const auto staging = [&](std::size_t slot, std::size_t bytes) {
      auto found = memory.staging(mine.device, slot, bytes);
      found.status().throw_if_error();
      expect((*found)->size() >= bytes, "as much as was asked for");
      return (*found)->data();
    };
    std::byte* const first = staging(0, 10);
    std::byte* const other = staging(1, 10);
    expect(first != other, "slots have memory of their own");
    expect(staging(0, 1000) == first, "it is enough");
    const std::size_t more = (*memory.staging(mine.device, 0, 0))->size() + 1;
    expect(staging(0, more) != first, "it has grown");
    *first = std::byte{7};  // a copy to it may still be in flight
    expect(staging(1, 10) == other, "another slot stays");
    mine.close();
  });
}

TEST_CASE("slots that all ranks have once stay agreed on, and a shortage is told once") {
  LaneMemory memory;
  CHECK(memory.agreed_slots() == 0);
  memory.agree_on_slots(3);
  memory.agree_on_slots(1);
  CHECK(memory.agreed_slots() == 3);
  CHECK(memory.take_shortage().ok());
  memory.note_shortage(Status(ErrorCode::internal, "no room"));
  CHECK(memory.take_shortage().message() == "no room");
  CHECK(memory.take_shortage().ok());
}

}  // namespace rueda::test::gpu_lane_parts_test
