// What happens when NCCL fails, ranks disagree, hang or are lost: an error with NCCL's own words,
// and nothing that waits for ever.
#include "nccl_fixture.h"

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
  const NcclFixture fixture({.polls_in_progress = 2});
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
  // Given up, also without close().
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
  const auto made = NcclCommunicator::start(*library, CudaFixture::device(0),
                                            take(library->unique_id(), "unique id"), 0, 2);
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(made.status().message(), Catch::Contains("ncclCommInitRankConfig on rank 0 of 2") &&
                                          Catch::Contains("Duplicate GPU detected"));
}

TEST_CASE("a call that fails in the middle carries NCCL's last error") {
  const NcclFixture fixture;
  run_gpu_ranks(1, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    expect_ok(reduce_something(mine, memory), "the first");
    nccl_double().fail("ncclAllReduce", 0, 1, nccl::system_error, "Call to ibv_modify_qp failed");
    const Status status = reduce_something(mine, memory);
    expect(status.code() == ErrorCode::transport, "a transport error");
    expect_contains(status,
                    "ncclAllReduce on rank 0 of 1 failed: unhandled system error: Call to "
                    "ibv_modify_qp failed");
    mine.finish();
    mine.close();
  });
}

TEST_CASE("a group that fails is given up, and the next one works") {
  const NcclFixture fixture;
  run_gpu_ranks(1, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    const NcclPart part{memory.data(), 4};
    nccl_double().fail("ncclRecv", 0, 1, nccl::internal_error, "no channel");
    const Status status = mine.communicator->alltoall(std::span(&part, 1), std::span(&part, 1),
                                                      DataType::float32, mine.stream.handle());
    expect_contains(status, "ncclRecv on rank 0 of 1 failed: internal error: no channel");
    mine.finish();
    expect_ok(reduce_something(mine, memory), "the next");
    mine.finish();
    mine.close();
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
    expect(!reduce_something(mine, memory).ok(), "nothing goes on");
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
    expect_ok(reduce_something(mine, memory), "enqueued");
    expect(mine.stream.wait_until_idle(Clock::now() + std::chrono::milliseconds(20)).code() ==
               ErrorCode::timeout,
           "it hangs");
    mine.communicator->abort();
    expect_ok(mine.stream.wait_until_idle(soon()), "the stream goes on");
  });
}

TEST_CASE("closing waits for what is enqueued, and gives up at its deadline") {
  const NcclFixture fixture;
  nccl_double().hang(0);
  run_gpu_ranks(1, [&](GpuRank& mine) {
    const DeviceMemory memory = some_floats(mine);
    expect_ok(reduce_something(mine, memory), "enqueued");
    const Status status = mine.communicator->close(Clock::now() + std::chrono::milliseconds(20));
    expect(status.code() == ErrorCode::timeout, "it takes too long");
    expect_ok(mine.stream.wait_until_idle(soon()), "the stream goes on");
  });
}

TEST_CASE("an older NCCL leaves out what it does not offer, and does the rest") {
  Options options = double_options();
  options.nccl_library = RUEDA_OLD_NCCL_DOUBLE;
  const CudaFixture fixture;
  const auto* library = take(load_nccl(options), "load_nccl");
  auto communicator = take(NcclCommunicator::start(*library, CudaFixture::device(0),
                                                   take(library->unique_id(), "unique id"), 0, 1),
                           "start");
  REQUIRE(communicator->wait_until_ready(soon()).ok());
  std::byte byte{};
  CHECK(communicator->register_buffer(&byte, 1).value() == nullptr);
  CHECK(communicator->register_window(&byte, 1).value() == nullptr);
  CHECK(communicator->close(soon()).ok());
}

}  // namespace
}  // namespace rueda::test::nccl_failures_test
