// NCCL collectives over 1 to 4 ranks: which calls are made, in which order, and their results.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "backend/nccl/memory.h"
#include "unit/backend/nccl/nccl_fixture.h"

namespace rueda::test::nccl_collectives_test {
namespace {

// rank * 100, rank * 100 + 1, ...
template <class T = float>
std::vector<T> own(int rank, std::size_t count) {
  std::vector<T> values(count);
  std::iota(values.begin(), values.end(), static_cast<T>(rank * 100));
  return values;
}

// The sum of all ranks' own() at `index`.
float total(int size, std::size_t index) {
  return static_cast<float>(size * static_cast<int>(index) + 50 * size * (size - 1));
}

void expect_values(const std::vector<float>& found, const std::vector<float>& expected) {
  expect(found == expected, "the values are as expected");
}

TEST_CASE("allreduce: sum and minimum") {
  const int size = GENERATE(1, 2, 3, 4);
  const NcclFixture fixture({}, 11);
  run_gpu_ranks(size, [&](GpuRank& mine) {
    for (const std::size_t count : {0, 1, 5, 1000}) {
      const DeviceMemory input = on_device(mine.stream, own(mine.rank, count));
      const DeviceMemory output = on_device(mine.stream, std::vector<float>(count, -1));
      const auto reduce = [&](const NcclCombination& how, const auto& expected) {
        expect_ok(mine.communicator->allreduce(input.data(), output.data(), count, how,
                                               mine.stream.handle()),
                  "allreduce");
        mine.finish();
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) values[i] = expected(i);
        expect_values(on_host<float>(mine.stream, output.data(), count), values);
      };
      reduce({DataType::float32}, [&](auto i) { return total(size, i); });
      reduce({DataType::float32, ReduceOp::min}, [&](auto i) { return static_cast<float>(i); });
    }
    mine.close();
  });
  const auto calls = nccl_double().calls(0);
  const auto count_of = [&](const std::string& function) {
    return std::count_if(calls.begin(), calls.end(),
                         [&](const NcclCall& call) { return call.function == function; });
  };
  CHECK(count_of("ncclAllReduce") == 8);
  CHECK(cuda_double().calls_of("cuLaunchKernel") == 0);
}

TEST_CASE("every element type goes around") {
  const NcclFixture fixture;
  run_gpu_ranks(3, [&](GpuRank& mine) {
    for (const DataTypeInfo& type : data_types) {
      const auto reduction = nccl_reduction(ReduceOp::max, type.id);
      // All zeros except on rank 2, whose bytes are a positive number in every type.
      std::vector<std::byte> content(16 * type.size);
      if (mine.rank == 2) std::fill(content.begin(), content.end(), std::byte{1});
      const DeviceMemory memory = on_device(mine.stream, content);
      if (reduction.ok()) {
        expect_ok(mine.communicator->allreduce(memory.data(), memory.data(), 16,
                                               {type.id, ReduceOp::max}, mine.stream.handle()),
                  "allreduce");
      } else {
        expect_ok(mine.communicator->broadcast(memory.data(), memory.data(), 16, type.id, 2,
                                               mine.stream.handle()),
                  "broadcast");
      }
      mine.finish();
      expect(on_host<std::byte>(mine.stream, memory.data(), content.size()) ==
                 std::vector<std::byte>(content.size(), std::byte{1}),
             str("all have rank 2's ", type.name));
    }
    mine.close();
  });
}

TEST_CASE("reduce_scatter, allgather and broadcast") {
  const int size = GENERATE(1, 2, 4);
  const NcclFixture fixture({}, 5);
  run_gpu_ranks(size, [&](GpuRank& mine) {
    const auto n = static_cast<std::size_t>(size);
    const auto rank = static_cast<std::size_t>(mine.rank);
    const StreamHandle stream = mine.stream.handle();
    NcclCommunicator& communicator = *mine.communicator;
    const DeviceMemory input = on_device(mine.stream, own(mine.rank, 7 * n));
    const DeviceMemory output = on_device(mine.stream, std::vector<float>(7 * n, -1));
    const auto result = [&](std::size_t count) {
      mine.finish();
      return on_host<float>(mine.stream, output.data(), count);
    };
    const int root = size - 1;
    expect_ok(
        communicator.reduce_scatter(input.data(), output.data(), 7, {DataType::float32}, stream),
        "reduce_scatter");
    std::vector<float> expected;
    for (std::size_t i = 0; i < 7; ++i) expected.push_back(total(size, 7 * rank + i));
    expect_values(result(7), expected);
    expect_ok(communicator.allgather(input.data(), output.data(), 7, DataType::float32, stream),
              "allgather");
    expected.clear();
    for (int other = 0; other < size; ++other) {
      const auto part = own(other, 7);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    expect_values(result(7 * n), expected);
    expect_ok(
        communicator.broadcast(input.data(), output.data(), 7, DataType::float32, root, stream),
        "broadcast");
    expect_values(result(7), own(root, 7));
    mine.close();
  });
}

TEST_CASE("alltoall with uneven parts, some of them empty, is one group") {
  const int size = GENERATE(1, 2, 4);
  const NcclFixture fixture({}, 9);
  // How many elements rank a sends to rank b.
  const auto length = [](int a, int b) { return static_cast<std::uint64_t>((3 * a + b) % 4); };
  run_gpu_ranks(size, [&](GpuRank& mine) {
    const DeviceMemory input = on_device(mine.stream, own<std::int64_t>(mine.rank, 32));
    const DeviceMemory output = on_device(mine.stream, std::vector<std::int64_t>(32, -1));
    std::vector<NcclPart> to;
    std::vector<NcclPart> from;
    std::vector<std::int64_t> expected;
    std::uint64_t sent = 0;
    for (int peer = 0; peer < size; ++peer) {
      to.push_back({input.data() + 8 * sent, length(mine.rank, peer)});
      sent += length(mine.rank, peer);
      from.push_back({output.data() + 8 * expected.size(), length(peer, mine.rank)});
      std::uint64_t skipped = 0;
      for (int before = 0; before < mine.rank; ++before) skipped += length(peer, before);
      for (std::uint64_t i = 0; i < length(peer, mine.rank); ++i)
        expected.push_back(peer * 100 + static_cast<std::int64_t>(skipped + i));
    }
    expect_ok(mine.communicator->alltoall(to, from, DataType::int64, mine.stream.handle()),
              "alltoall");
    mine.finish();
    expect(on_host<std::int64_t>(mine.stream, output.data(), expected.size()) == expected,
           "everything has arrived");
    const Status wrong =
        mine.communicator->alltoall({}, from, DataType::int64, mine.stream.handle());
    expect(wrong.code() == ErrorCode::invalid_argument, "too few parts are refused");
    mine.close();
  });
  for (const NcclCall& call : nccl_double().calls(0)) {
    if (call.function == "ncclSend" || call.function == "ncclRecv") {
      CHECK(call.in_group);
      CHECK(call.count > 0);
    }
  }
}

TEST_CASE("operations of two streams wait for the events between them") {
  const NcclFixture fixture({}, 21);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const CudaStream user = take(CudaStream::create(mine.device), "stream");
    const CudaEvent made = take(CudaEvent::create(mine.device), "event");
    const CudaEvent reduced = take(CudaEvent::create(mine.device), "event");
    for (int step = 0; step < 20; ++step) {
      // The user's stream computes a gradient, ours reduces it, and the user's consumes it.
      const DeviceMemory gradient = on_device(user, own(mine.rank + step, 100));
      expect_ok(made.record(user), "record");
      expect_ok(mine.stream.wait_for(made), "wait");
      expect_ok(mine.communicator->allreduce(gradient.data(), gradient.data(), 100,
                                             {DataType::float32}, mine.stream.handle()),
                "allreduce");
      expect_ok(mine.communicator->wait_until_ready(soon()), "in the stream");
      expect_ok(reduced.record(mine.stream), "record");
      expect_ok(user.wait_for(reduced), "wait");
      const auto sums = on_host<float>(user, gradient.data(), 100);
      expect(sums[7] == static_cast<float>(2 * 7 + 100 * (2 * step + 1)), "the sum is right");
    }
    mine.close();
  });
}

TEST_CASE("parts of different lengths are reduced in one group, each to its rank") {
  const NcclFixture fixture;
  run_gpu_ranks(3, [&](GpuRank& mine) {
    const DeviceMemory input = on_device(mine.stream, own(mine.rank, 6));
    const DeviceMemory output = on_device(mine.stream, std::vector<float>(6, -1));
    const std::vector<std::int64_t> lengths{1, 0, 5};
    expect_ok(mine.communicator->reduce_scatter(input.data(), output.data(), lengths,
                                                {DataType::float32}, mine.stream.handle()),
              "a group");
    mine.finish();
    const auto rank = static_cast<std::size_t>(mine.rank);
    std::vector<float> expected;
    for (std::int64_t i = 0; i < lengths[rank]; ++i)
      expected.push_back(total(3, (rank == 2 ? 1 : 0) + static_cast<std::size_t>(i)));
    expect_values(on_host<float>(mine.stream, output.data(), expected.size()), expected);
    expect(mine.communicator
                   ->reduce_scatter(input.data(), output.data(), std::span(lengths).first(2),
                                    {DataType::float32}, mine.stream.handle())
                   .code() == ErrorCode::invalid_argument,
           "a length for each rank");
    mine.close();
  });
  for (const NcclCall& call : nccl_double().calls(0)) {
    if (call.function == "ncclReduce") CHECK(call.in_group);
  }
}

TEST_CASE("a call returns before NCCL does, and the next one waits for that") {
  const NcclFixture fixture;
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const DeviceMemory memory = on_device(mine.stream, own(mine.rank, 3));
    const auto reduce = [&] {
      return mine.communicator->allreduce(memory.data(), memory.data(), 3, {DataType::float32},
                                          mine.stream.handle());
    };
    nccl_double().hold_calls(true);
    expect_ok(reduce(), "the call");
    expect(!take(mine.communicator->poll(), "poll"), "NCCL has not returned");
    expect(reduce().message().find("while it was busy") != std::string::npos, "no second one");
    nccl_double().hold_calls(false);
    mine.finish();
    expect(on_host<float>(mine.stream, memory.data(), 3)[2] == 104.0F, "the sum is right");
    mine.close();
  });
}

TEST_CASE("a GPU that lags behind holds NCCL's calls back, and nothing is lost") {
  const NcclFixture fixture({.max_call_us = 0, .max_running = 3}, 31);
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const DeviceMemory memory = on_device(mine.stream, std::vector<float>(4, 1));
    cuda_double().enqueue(mine.stream.handle(), [deadline = soon()] {
      while (nccl_double().back_pressured_calls() == 0 && Clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    });
    for (int i = 0; i < 20; ++i) {
      expect_ok(mine.communicator->allreduce(memory.data(), memory.data(), 4, {DataType::float32},
                                             mine.stream.handle()),
                "allreduce");
      expect_ok(mine.communicator->wait_until_ready(soon()), "in the stream");
    }
    mine.finish();
    expect(on_host<float>(mine.stream, memory.data(), 1)[0] == 1048576.0F, "twenty sums");
    mine.close();
  });
  CHECK(nccl_double().back_pressured_calls() > 0);
}

TEST_CASE("memory is registered as a window, or where there can be none by itself") {
  const bool symmetric = GENERATE(true, false);
  const NcclFixture fixture({.symmetric = symmetric});
  run_gpu_ranks(2, [&](GpuRank& mine) {
    const NcclMemory memory = take(NcclMemory::allocate({mine.library, mine.device}, 64), "memory");
    expect_ok(mine.communicator->register_memory(memory.data(), memory.size()), "register");
    expect_ok(mine.communicator->wait_until_ready(soon()), "registered");
    mine.close();
  });
  const auto calls = nccl_double().calls(0);
  const auto has = [&](const std::string& function) {
    return std::any_of(calls.begin(), calls.end(),
                       [&](const NcclCall& call) { return call.function == function; });
  };
  CHECK(has("ncclCommWindowDeregister") == symmetric);
  CHECK(has("ncclCommDeregister") != symmetric);
}

// For a nonblocking one, NCCL starts a thread for each group of calls.
TEST_CASE("Rueda's communicators block") {
  const NcclFixture fixture;
  run_gpu_ranks(2, [](GpuRank& mine) { mine.close(); });
  const NcclCall first = nccl_double().calls(0).front();
  CHECK(first.function == "ncclCommInitRankConfig");
  CHECK(first.op == 1);
}

// Benchmarks compare with this, without Rueda.
TEST_CASE("a communicator that does not block tells when its work is in the stream") {
  const NcclFixture fixture;
  const int size = GENERATE(1, 2);
  const auto* library = take(load_nccl(double_options()), "load_nccl");
  const nccl::UniqueId id = take(library->unique_id(), "unique id");
  run_ranks(size, [&](int rank) {
    const nccl::Functions& functions = library->functions();
    const DeviceReference device = CudaFixture::device(rank);
    const CurrentDevice current(*device);
    const CudaStream stream = take(CudaStream::create(device), "stream");
    const DeviceMemory input = on_device(stream, own(rank, 5));
    const DeviceMemory output = on_device(stream, std::vector<float>(5, -1));
    expect_ok(stream.wait_until_idle(soon()), "copies");
    nccl::Comm communicator = nullptr;
    const auto settle = [&](nccl::Result result, const std::string& what) {
      expect(result == nccl::in_progress, what);
      nccl::Result state = nccl::in_progress;
      const Time end = soon();
      while (state == nccl::in_progress && Clock::now() < end)
        expect(functions.comm_get_async_error(communicator, &state) == nccl::success, what);
      expect(state == nccl::success, what);
    };
    nccl::Config config;
    config.blocking = 0;
    settle(functions.comm_init_rank_config(&communicator, size, id, rank, &config), "connect");
    const int next = (rank + 1) % size;
    const int before = (rank + size - 1) % size;
    expect(functions.group_start() == nccl::success, "group");
    expect(functions.send(input.data(), 5, nccl::float32, next, communicator, stream.handle()) ==
               nccl::success,
           "send");
    expect(functions.recv(output.data(), 5, nccl::float32, before, communicator, stream.handle()) ==
               nccl::success,
           "receive");
    settle(functions.group_end(), "launch");
    expect_values(on_host<float>(stream, output.data(), 5), own(before, 5));
    settle(functions.comm_finalize(communicator), "leave");
    expect(functions.comm_destroy(communicator) == nccl::success, "end");
  });
}

TEST_CASE("what NCCL cannot do is refused before it is called") {
  const NcclFixture fixture;
  run_gpu_ranks(1, [&](GpuRank& mine) {
    const DeviceMemory memory = on_device(mine.stream, own(0, 4));
    const auto refused = [&](const NcclCombination& how) {
      return mine.communicator
                 ->allreduce(memory.data(), memory.data(), 1, how, mine.stream.handle())
                 .code() == ErrorCode::unsupported;
    };
    expect(refused({DataType::float32, ReduceOp::average}), "an average");
    expect(refused({DataType::int16, ReduceOp::sum}), "16-bit integers");
    mine.finish();
    mine.close();
  });
  for (const NcclCall& call : nccl_double().calls(0)) CHECK(call.function != "ncclAllReduce");
}

}  // namespace
}  // namespace rueda::test::nccl_collectives_test
