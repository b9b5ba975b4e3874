// NCCL fails, or ranks disagree, hang or are lost: the error has NCCL's own words, and nothing
// waits forever.
#include "unit/backend/nccl/nccl_fixture.h"

namespace rueda::test::nccl_failures_test {
namespace {

Status reduce_something(GpuRank& mine, const DeviceMemory& memory, std::uint64_t count = 4) {
  return mine.communicator->allreduce(memory.data(), memory.data(), count, {DataType::float32},
                                      mine.stream.handle());
}

// Polls until an error comes.
Status awaited_error(const GpuRank& mine) {
  const Time deadline = soon();
  while (Clock::now() < deadline) {
    const Expected<bool> ready = mine.communicator->poll();
    if (!ready) return ready.status();
    std::this_thread::yield();
  }
  return {};
}

void expect_contains(const Status& status, const std::string& text) {
  expect(status.to_string().find(text) != std::string::npos,
         str("'", status.to_string(), "' says '", text, "'"));
}

DeviceMemory some_floats(const GpuRank& mine) {
  return on_device(mine.stream, std::vector<float>(8, 1));
}

TEST_CASE("a communicator is not ready before all ranks have come, and waits no longer than told") {
  const NcclFixture fixture;
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  const nccl::UniqueId id = take(library->unique_id(), "unique id");
  auto first = take(NcclCommunicator::start(*library, CudaFixture::device(0), id, 0, 2), "start");
  CHECK_FALSE(first->poll().value());
  const Status late = first->wait_until_ready(Clock::now() + std::chrono::milliseconds(5));
  CHECK(late.code() == ErrorCode::timeout);
  CHECK_THAT(late.message(), Catch::Contains("rank 0 of 2"));
  auto second = take(NcclCommunicator::start(*library, CudaFixture::device(1), id, 1, 2), "start");
  CHECK(first->wait_until_ready(soon()).ok());
  CHECK(second->wait_until_ready(soon()).ok());
  // Also aborts without close().
  first.reset();
  second->abort();
  second->abort();
  CHECK(second->poll().status().code() == ErrorCode::shutdown);
}

TEST_CASE("a rank that is none is refused") {
  const NcclFixture fixture;
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  const nccl::UniqueId id = take(library->unique_id(), "unique id");
  for (const int rank : {-1, 2}) {
    const auto made = NcclCommunicator::start(*library, CudaFixture::device(0), id, rank, 2);
    CHECK(made.status().code() == ErrorCode::invalid_argument);
  }
}

TEST_CASE("a communicator that cannot be made says why") {
  const NcclFixture fixture;
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  nccl_double().fail("ncclCommInitRankConfig", 0, 1, nccl::invalid_usage,
                     "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 0");
  const auto made = take(NcclCommunicator::start(*library, CudaFixture::device(0),
                                                 take(library->unique_id(), "unique id"), 0, 2),
                         "start");
  CHECK_THAT(made->wait_until_ready(soon()).message(),
             Catch::Contains("ncclCommInitRankConfig on rank 0 of 2") &&
                 Catch::Contains("Duplicate GPU detected"));
}

TEST_CASE("a rank that connects in vain is left to itself, until NCCL says that the others ended") {
  const NcclFixture fixture;
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  auto alone = take(NcclCommunicator::start(*library, CudaFixture::device(0),
                                            take(library->unique_id(), "unique id"), 0, 2),
                    "start");
  const Time end = soon();
  while (nccl_double().connecting() == 0 && Clock::now() < end) std::this_thread::yield();
  REQUIRE(nccl_double().connecting() == 1);
  alone->expect_late_end();  // shortens its wait
  alone->abort();            // returns; the double would report a call of NCCL's abort
  alone.reset();
  CHECK(nccl_double().connecting() == 1);
  nccl_double().end_connecting();
  while (nccl_double().communicators() > 0 && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_CASE("a call that NCCL does not return from is ended by an abort from another thread") {
  const NcclFixture fixture;
  nccl_double().block(1);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    expect_ok(reduce_something(mine, memory), "posted");
    if (mine.rank == 1) {
      const Time end = soon();
      while (nccl_double().blocked_calls() == 0 && Clock::now() < end) std::this_thread::yield();
      expect(nccl_double().blocked_calls() == 1, "it sits in the call");
      expect(
          mine.communicator->wait_until_ready(Clock::now() + std::chrono::milliseconds(5)).code() ==
              ErrorCode::timeout,
          "a deadline");
    }
    mine.communicator->abort();
    expect(mine.communicator->poll().status().code() == ErrorCode::shutdown, "it is gone");
    expect_ok(mine.stream.wait_until_idle(soon()), "the stream goes on");
  });
  CHECK(nccl_double().blocked_calls() == 0);
}

TEST_CASE("a call that fails in the middle carries NCCL's last error") {
  const NcclFixture fixture;
  run_gpu_ranks(1, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    expect_ok(reduce_something(mine, memory), "the first");
    mine.finish();
    nccl_double().fail("ncclAllReduce", 0, 1, nccl::system_error, "Call to ibv_modify_qp failed");
    expect_ok(reduce_something(mine, memory), "posted");
    const Status status = mine.communicator->wait_until_ready(soon());
    expect(status.code() == ErrorCode::transport, "a transport error");
    expect_contains(status,
                    "ncclAllReduce on rank 0 of 1 failed: unhandled system error: Call to "
                    "ibv_modify_qp failed");
    expect(reduce_something(mine, memory).to_string() == status.to_string(), "and so for ever");
  });
}

TEST_CASE("a group that fails tells which call of it did") {
  const NcclFixture fixture;
  run_gpu_ranks(1, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    const NcclPart part{memory.data(), 4};
    nccl_double().fail("ncclRecv", 0, 1, nccl::internal_error, "no channel");
    expect_ok(mine.communicator->alltoall(std::span(&part, 1), std::span(&part, 1),
                                          DataType::float32, mine.stream.handle()),
              "posted");
    expect_contains(mine.communicator->wait_until_ready(soon()),
                    "ncclRecv on rank 0 of 1 failed: internal error: no channel");
    expect_ok(mine.stream.wait_until_idle(soon()), "what the group still did");
  });
}

TEST_CASE("an error behind a rank's back is found by polling, and nothing else is launched") {
  const NcclFixture fixture;
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    expect_ok(reduce_something(mine, memory), "the first");
    mine.finish();
    nccl_double().break_communicators(mine.rank, nccl::remote_error,
                                      "socketProgress: Connection closed by remote peer");
    const Status status = awaited_error(mine);
    expect(status.code() == ErrorCode::peer_lost, "a peer is lost");
    expect_contains(status, "Connection closed by remote peer");
    expect(!reduce_something(mine, memory).ok() || !awaited_error(mine).ok(), "nothing goes on");
    expect(!mine.communicator->close(soon()).ok(), "closing tells the error, and gives up");
    expect(mine.communicator->poll().status().code() == ErrorCode::shutdown, "it is gone");
  });
}

TEST_CASE("ranks that disagree are told so, by the double") {
  const NcclFixture fixture;
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    expect_ok(reduce_something(mine, memory, mine.rank == 0 ? 4 : 5), "enqueued");
    const Status status = awaited_error(mine);
    expect_contains(status, "ranks disagree: rank 0 has called ncclAllReduce of 4");
    mine.communicator->abort();
    expect_ok(mine.stream.wait_until_idle(soon()), "the stream goes on");
  });
}

TEST_CASE("aborting frees a stream in which a rank hangs") {
  const NcclFixture fixture;
  nccl_double().hang(1);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    expect_ok(reduce_something(mine, memory), "posted");
    expect_ok(mine.communicator->wait_until_ready(soon()), "enqueued");
    expect(mine.stream.wait_until_idle(Clock::now() + std::chrono::milliseconds(20)).code() ==
               ErrorCode::timeout,
           "it hangs");
    mine.communicator->abort();
    expect_ok(mine.stream.wait_until_idle(soon()), "the stream goes on");
  });
}

TEST_CASE("what is closed is closed") {
  const NcclFixture fixture;
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  const nccl::UniqueId id = take(library->unique_id(), "unique id");
  auto first = take(NcclCommunicator::start(*library, CudaFixture::device(0), id, 0, 2), "start");
  auto second = take(NcclCommunicator::start(*library, CudaFixture::device(1), id, 1, 2), "start");
  REQUIRE(first->wait_until_ready(soon()).ok());
  REQUIRE(second->wait_until_ready(soon()).ok());
  CHECK(first->close(soon()).ok());
  CHECK(first->close(soon()).code() == ErrorCode::shutdown);
  CHECK(second->close(soon()).ok());
}

}  // namespace
}  // namespace rueda::test::nccl_failures_test
