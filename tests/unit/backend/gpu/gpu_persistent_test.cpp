// Persistent allreduces of GPU tensors, enqueued by the calling thread: in place, out of place,
// converted, and captured into graphs.
#include <catch2/catch.hpp>
#include <memory>
#include <thread>

#include "ranks/gpu_persistent_runs.h"

namespace rueda::test::gpu_persistent_test {

TEST_CASE("a persistent allreduce of a GPU's tensor is enqueued by whoever starts it") {
  const int size = GENERATE(1, 2, 3, 4);
  const Sharing sharing = GENERATE(Sharing::memory, Sharing::nothing);
  const NcclFixture fixture({}, 5);
  run_gpu_engines({.size = size, .sharing = sharing}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 0));
    const DeviceMemory result = gpu.tensor(std::vector<float>(count, 0));
    const Run in_place = persistent(gpu, memory, {.name = "sum", .op = ReduceOp::sum});
    const Run scaled = persistent(
        gpu, memory, {.op = ReduceOp::sum, .prescale_factor = 0.5, .postscale_factor = 4},
        result.data());
    const Run average = persistent(gpu, memory, {.op = ReduceOp::average});
    const Run narrow = persistent(gpu, memory,
                                  {.op = ReduceOp::average,
                                   .prescale_factor = 2,
                                   .postscale_factor = 0.5,
                                   .wire_dtype = DataType::bfloat16},
                                  result.data());
    auto runs = gpu.engine.metrics().values();
    const float sum = sum_of(size);
    for (int round = 1; round <= 4; ++round) {
      const auto own = static_cast<float>(round * (gpu.rank() + 1));
      const float all = static_cast<float>(round) * sum;
      write(gpu, memory, own);
      run(*scaled);
      expect_all(gpu, result.data(), 2 * all, "scaled");
      run(*narrow);
      expect_all(gpu, result.data(), all / static_cast<float>(size), "narrow");
      run(*in_place);
      expect(in_place->done(), "done once it is enqueued");
      expect_all(gpu, memory.data(), all, "sum");
      write(gpu, memory, own);
      run(*average);
      expect_all(gpu, memory.data(), all / static_cast<float>(size), "average");
    }
    for (auto& [name, count] : runs) count = gpu.engine.metrics().values().at(name) - count;
    expect(runs["nccl_calls"] == 16, "by NCCL");
    expect(runs["allreduce_batches"] == 16 && runs["tensors_completed"] == 16, "each counts");
    expect(runs["tensors_submitted"] == 16, "once: nothing is negotiated");
    gpu.drain();
  });
}

TEST_CASE("persistent operations and ordinary ones go on side by side") {
  const NcclFixture fixture({}, 9);
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    const DeviceMemory first = gpu.tensor(std::vector<float>(count, 0));
    const DeviceMemory second = gpu.tensor(std::vector<float>(count, 0));
    const DeviceMemory third = gpu.tensor(std::vector<float>(count, 0));
    const Run one = persistent(gpu, first, {.op = ReduceOp::sum});
    const Run two = persistent(gpu, second, {.op = ReduceOp::max});
    for (int round = 0; round < 10; ++round) {
      const auto value = static_cast<float>(round + gpu.rank());
      for (const DeviceMemory* memory : {&first, &second, &third}) write(gpu, *memory, value);
      const Handle ordinary = gpu.submit(gpu.allreduce(third, count, DataType::float32, "t"));
      one->start(std::nullopt);
      two->start(std::nullopt);
      two->wait();
      one->wait();
      gpu.finish(ordinary);
      expect_all(gpu, first.data(), static_cast<float>(3 * round + 3), "first");
      expect_all(gpu, second.data(), static_cast<float>(round + 2), "second");
      expect_all(gpu, third.data(), static_cast<float>(3 * round + 3), "third");
    }
    gpu.drain();
  });
}

TEST_CASE("a start on another stream comes after the one before") {
  const NcclFixture fixture({}, 13);
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const CudaStream other = take(CudaStream::create(gpu.stream().device()), "another stream");
    gpu.drain();
    const Run operation =
        persistent(gpu, memory, {.op = ReduceOp::sum, .wire_dtype = DataType::float16});
    for (int round = 0; round < 5; ++round) {
      operation->start(other.handle());
      operation->wait();
      operation->start(gpu.stream().handle());
      operation->wait();
    }
    expect_all(gpu, memory.data(), 1024, "two to the tenth");
    gpu.drain();
    expect_ok(other.wait_until_idle(soon()), "the other stream");
  });
}

TEST_CASE("a persistent allreduce on which ranks disagree is an error on each of them") {
  const NcclFixture fixture;
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const auto made_with = [&](const AllreduceOptions& odd) {
      AllreduceOptions options{.name = "x", .op = ReduceOp::sum};
      return error_of([&] { (void)persistent(gpu, memory, gpu.rank() == 1 ? odd : options); });
    };
    const std::string op = made_with({.name = "x", .op = ReduceOp::max});
    expect(contains(op, "op differs") && contains(op, "'x'"), op);
    const std::string wire =
        made_with({.name = "x", .op = ReduceOp::sum, .wire_dtype = DataType::bfloat16});
    expect(contains(wire, "wire dtype differs"), wire);
    const std::string device = error_of([&] {
      std::vector<float> host(count);
      if (gpu.rank() != 1) {
        (void)persistent(gpu, memory, {.name = "x"});
      } else {
        const std::shared_ptr<Runtime> engine(std::shared_ptr<void>(), &gpu.engine);
        const TensorView view{host.data(), {count}, DataType::float32};
        (void)PersistentAgreement(engine, view, host.data(), {.name = "x"}).make_run();
      }
    });
    expect(contains(device, "device differs"), device);
    // The world continues.
    const Run operation = persistent(gpu, memory, {.name = "x", .op = ReduceOp::sum});
    run(*operation);
    expect_all(gpu, memory.data(), 3, "the sum");
    gpu.drain();
  });
}

TEST_CASE("a rank without memory for a persistent allreduce is named on every rank") {
  const NcclFixture fixture;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const AllreduceOptions options{.op = ReduceOp::sum, .wire_dtype = DataType::float16};
    gpu.drain();
    meet(gpu, "before");
    if (gpu.rank() == 0) cuda_double().fail("cuMemAlloc_v2", 1, 2);
    meet(gpu, "after");
    const std::string error = error_of([&] { (void)persistent(gpu, memory, options); });
    expect(contains(error, "cannot prepare a persistent allreduce") &&
               contains(error, "out of memory"),
           error);
    // Packed, so that a buffer is registered with NCCL first.
    const DeviceMemory halves = gpu.tensor(std::vector<float>(4, 0.5));
    Submission narrowed = gpu.allreduce(halves, 4, DataType::float32, "narrow");
    narrowed.request.wire = DataType::float16;
    gpu.finish(gpu.submit(std::move(narrowed)));
    expect(gpu.read<float>(halves.data(), 4) == std::vector<float>(4, 1), "the next operation");
    const Run operation = persistent(gpu, memory, options);
    run(*operation);
    expect_all(gpu, memory.data(), 2, "the sum");
    gpu.drain();
  });
}

TEST_CASE("a second start before the wait is refused") {
  const NcclFixture fixture;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    operation->start(std::nullopt);
    const std::string error = error_of([&] { operation->start(std::nullopt); });
    expect(contains(error, "started again before it was waited for"), error);
    operation->wait();
    gpu.drain();
  });
}

TEST_CASE("a captured persistent allreduce runs with each launch of the graph") {
  const int size = GENERATE(2, 3, 4);
  const NcclFixture fixture({}, 17);
  run_gpu_engines({size}, [&](GpuEngine& gpu) {
    const DeviceMemory gradient = gpu.tensor(std::vector<float>(count, 0));
    const DeviceMemory loss = gpu.tensor(std::vector<float>(count, 0));
    const DeviceMemory result = gpu.tensor(std::vector<float>(count, 0));
    const Run narrow = persistent(
        gpu, gradient,
        {.op = ReduceOp::average, .postscale_factor = 2, .wire_dtype = DataType::bfloat16});
    const Run plain = persistent(gpu, loss, {.op = ReduceOp::sum}, result.data());
    run(*narrow);
    run(*plain);
    gpu.drain();
    const CudaStream capturing = take(CudaStream::create(gpu.stream().device()), "stream");
    cuda_double().begin_capture(capturing.handle());
    for (const Run* operation : {&narrow, &plain}) {
      (*operation)->start(capturing.handle());
      (*operation)->wait();
    }
    const CudaGraphReference graph = cuda_double().end_capture(capturing.handle());
    expect(graph->size() == 4, "pack, reduce, unpack; reduce");
    for (int round = 1; round <= 5; ++round) {
      const auto own = static_cast<float>(round * (gpu.rank() + 1));
      const float sum = static_cast<float>(round) * sum_of(size);
      write(gpu, gradient, own);
      write(gpu, loss, own);
      cuda_double().launch(graph, gpu.stream().handle());
      expect_all(gpu, gradient.data(), 2 * sum / static_cast<float>(size), "gradient");
      expect_all(gpu, result.data(), sum, "loss");
      // Started by hand between launches.
      run(*plain);
      expect_all(gpu, result.data(), sum, "loss again");
    }
    gpu.drain();
    meet(gpu, "end");
    expect(cuda_double().relaxed_calls_while_capturing() == 0, "nothing is asked or allocated");
  });
}

TEST_CASE("where tensors are staged a persistent allreduce is a named operation, not for graphs") {
  const NcclFixture fixture;
  struct Staged {
    Gpus gpus;
    std::string backend;
    std::string why;
  };
  const auto world = GENERATE(values<Staged>({{Gpus::own, "staged", "RUEDA_GPU_BACKEND=staged"},
                                              {Gpus::shared, "auto", "share the GPU"},
                                              {Gpus::own, "auto", "NCCL cannot do this average"}}));
  Options options = double_options();
  options.gpu_backend = world.backend;
  run_gpu_engines({2, world.gpus, Sharing::memory, options}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<std::int32_t>(count, 0));
    const Run operation =
        persistent(gpu, memory, {.name = "x", .op = ReduceOp::average}, nullptr, DataType::int32);
    for (int round = 0; round < 3; ++round) {
      const std::vector<std::int32_t> values(count, 3 * gpu.rank() + 2 * round + 1);
      expect_ok(copy_to_device(gpu.stream(), memory.data(),
                               reinterpret_cast<const std::byte*>(values.data()), memory.size()),
                "write");
      run(*operation);
      expect(gpu.read<std::int32_t>(memory.data(), count) ==
                 std::vector<std::int32_t>(count, 2 * round + 2),
             "the average");
      gpu.drain();
      cuda_double().begin_capture(gpu.stream().handle());
      const std::string error = error_of([&] { operation->start(std::nullopt); });
      cuda_double().end_capture(gpu.stream().handle());
      expect(contains(error, "cannot be captured into a CUDA graph") && contains(error, world.why),
             error);
      meet(gpu, "after the refusal");
    }
    gpu.drain();
  });
}

TEST_CASE("a start on a stream that is another one in each thread is refused") {
  const NcclFixture fixture;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    const std::string error =
        error_of([&] { operation->start(reinterpret_cast<void*>(std::uintptr_t{2})); });
    expect(contains(error, "cudaStreamPerThread") && contains(error, "of your own"), error);
    gpu.drain();
    meet(gpu, "refused");
  });
}

TEST_CASE("a start can be left and gone on with") {
  const NcclFixture fixture;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    Run operation = persistent(gpu, memory, {.op = ReduceOp::sum, .wire_dtype = DataType::float16});
    meet(gpu, "connected");
    nccl_double().hold_calls(true);
    meet(gpu, "held");
    operation->begin(std::nullopt);
    expect(!operation->start_until(Clock::now()), "NCCL is busy");
    expect(!operation->done(), "NCCL is busy still");
    const std::string error = error_of([&] { operation->start(std::nullopt); });
    expect(contains(error, "started again before it was waited for"), error);
    meet(gpu, "seen");
    nccl_double().hold_calls(false);
    operation->wait();
    expect_all(gpu, memory.data(), 2, "finished by the wait");
    operation->begin(std::nullopt);
    operation.reset();  // finishes it
    expect_all(gpu, memory.data(), 4, "finished at the end");
    gpu.drain();
  });
}

TEST_CASE("memory of a persistent allreduce is used again") {
  const NcclFixture fixture;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const auto run_once = [&] {
      const Run operation =
          persistent(gpu, memory, {.op = ReduceOp::average, .wire_dtype = DataType::float16});
      run(*operation);
    };
    run_once();
    meet(gpu, "before");
    const int allocated = cuda_double().calls_of("cuMemAlloc_v2");
    const int freed = cuda_double().calls_of("cuMemFree_v2");
    meet(gpu, "between");
    run_once();
    run_once();
    meet(gpu, "after");
    expect(cuda_double().calls_of("cuMemAlloc_v2") == allocated, "nothing is allocated");
    expect(cuda_double().calls_of("cuMemFree_v2") == freed, "nothing is freed");
    meet(gpu, "end");
    gpu.drain();
  });
}

}  // namespace rueda::test::gpu_persistent_test
