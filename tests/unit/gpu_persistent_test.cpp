// Persistent all-reductions of tensors on GPUs, which the calling thread enqueues: in place and out
// of place, converted, captured into graphs, and what happens when something fails.
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "api/persistent_run.h"
#include "gpu_engine_ranks.h"

namespace rueda::test {
namespace {

using Run = std::unique_ptr<PersistentRun>;

constexpr std::size_t count = 5000;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A float32 tensor's, in place where there is no `output`.
Run persistent(GpuEngine& gpu, const DeviceMemory& memory, const AllreduceOptions& options,
               std::byte* output = nullptr, DataType dtype = DataType::float32) {
  const auto elements = static_cast<std::int64_t>(memory.size() / size_of(dtype));
  const TensorView view{memory.data(),
                        {elements},
                        dtype,
                        gpu.stream().device()->facts().ordinal,
                        gpu.stream().handle()};
  const std::shared_ptr<Engine> engine(std::shared_ptr<void>(), &gpu.engine);
  return PersistentAgreement(engine, view, output != nullptr ? output : memory.data(), options)
      .make_run();
}

void write(GpuEngine& gpu, const DeviceMemory& memory, float value) {
  const std::vector<float> values(memory.size() / sizeof(float), value);
  expect_ok(copy_to_device(gpu.stream(), memory.data(),
                           reinterpret_cast<const std::byte*>(values.data()), memory.size()),
            "write");
}

void expect_all(GpuEngine& gpu, const std::byte* memory, float value, const std::string& what) {
  const auto result = gpu.read<float>(memory, count);
  expect(result == std::vector<float>(count, value),
         str(what, ": ", result.front(), " instead of ", value));
}

void run(PersistentRun& operation) {
  operation.start(std::nullopt);
  operation.wait();
}

// The text of the error that comes, "none" where none does.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// The error that comes sooner or later of starting again and again.
std::string later_error_of(PersistentRun& operation) {
  std::string error = "none";
  const Time end = soon();
  while (error == "none" && Clock::now() < end) {
    error = error_of([&] { run(operation); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return error;
}

// All ranks have come here.
void meet(GpuEngine& gpu, const std::string& name) {
  std::vector<float> nothing(1);
  test::finish(test::submit(gpu.engine, allreduce_of(nothing, DataType::float32, name)));
}

// One that runs `operation` with each launch.
CudaGraphReference captured(GpuEngine& gpu, PersistentRun& operation) {
  cuda_double().begin_capture(gpu.stream().handle());
  run(operation);
  return cuda_double().end_capture(gpu.stream().handle());
}

// What the ranks of a test leave behind: graphs that the program has not destroyed when Rueda ends.
// NCCL keeps their communicators until then.
class LeftGraphs {
 public:
  ~LeftGraphs() {
    graphs_.clear();
    const Time end = soon();
    while (nccl_double().communicators() > 0 && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void keep(CudaGraphReference graph) {
    const std::lock_guard lock(mutex_);
    graphs_.push_back(std::move(graph));
  }

 private:
  std::mutex mutex_;
  std::vector<CudaGraphReference> graphs_;
};

// Of rank + 1 over the ranks.
float sum_of(int size) {
  return static_cast<float>(size * (size + 1) / 2);
}

}  // namespace

TEST_CASE("a persistent allreduce of a GPU's tensor is enqueued by whoever starts it") {
  const int size = GENERATE(1, 2, 3, 4);
  const int polls = GENERATE(0, 2);
  const Sharing sharing = GENERATE(Sharing::memory, Sharing::nothing);
  const NcclFixture fixture({.polls_in_progress = polls}, 5);
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
    const std::int64_t before = gpu.engine.metrics().at("nccl_calls");
    const std::int64_t negotiated = gpu.engine.metrics().at("tensors_submitted");
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
    expect(gpu.engine.metrics().at("nccl_calls") == before + 16, "by NCCL");
    expect(gpu.engine.metrics().at("tensors_submitted") == negotiated, "nothing is negotiated");
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
        const std::shared_ptr<Engine> engine(std::shared_ptr<void>(), &gpu.engine);
        const TensorView view{host.data(), {count}, DataType::float32};
        (void)PersistentAgreement(engine, view, host.data(), {.name = "x"}).make_run();
      }
    });
    expect(contains(device, "device differs"), device);
    // The world goes on.
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
  const int polls = GENERATE(0, 2);
  const NcclFixture fixture({.polls_in_progress = polls}, 17);
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
      // Started by hand in between.
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

TEST_CASE("an error of NCCL at a start reaches every rank") {
  const NcclFixture fixture;
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    run(*operation);
    gpu.drain();
    meet(gpu, "before");
    if (gpu.rank() == 1) {
      nccl_double().fail("ncclAllReduce", 1, 2, nccl::system_error, "the link has gone");
    }
    const std::string error = later_error_of(*operation);
    expect(contains(error, "the link has gone"), error);
    gpu.drain();
  });
}

TEST_CASE("an error of NCCL behind a start's back reaches every rank, also those that only wait") {
  const NcclFixture fixture;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    run(*operation);
    gpu.drain();
    meet(gpu, "before");
    if (gpu.rank() == 1) nccl_double().break_communicators(1, nccl::remote_error, "no route");
    const Time end = soon();
    while (gpu.engine.refusal().ok() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::string error = error_of([&] { operation->wait(); });
    expect(contains(error, "no route"), error);
    gpu.drain();
  });
}

TEST_CASE("a persistent allreduce that does not end is given up, and streams go on") {
  const NcclFixture fixture;
  const bool hangs = GENERATE(true, false);  // or the other rank does not start it
  GpuWorld world{2};
  world.options.transfer_timeout = 3;  // also enough for ranks to agree on a loaded machine
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.name = "x", .op = ReduceOp::sum});
    if (hangs && gpu.rank() == 1) nccl_double().hang(1);
    if (hangs || gpu.rank() == 0) run(*operation);
    const Time end = soon();
    while (gpu.engine.refusal().ok() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::string error = error_of([&] { operation->start(std::nullopt); });
    expect(contains(error, "has not finished a persistent allreduce"), error);
    gpu.drain();
  });
}

TEST_CASE("a rank that fails does not leave the others' streams waiting") {
  const NcclFixture fixture;
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    if (gpu.rank() == 1) {
      gpu.engine.abort("out of ideas");
    } else {
      (void)error_of([&] { run(*operation); });
    }
    gpu.drain();
    const std::string error = later_error_of(*operation);
    expect(contains(error, "out of ideas"), error);
  });
}

TEST_CASE("after the end of its process set or world a persistent allreduce says so") {
  const NcclFixture fixture;
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    const int set = change(gpu.engine, Collective::add_process_set, {0, 2});
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run of_all = persistent(gpu, memory, {.op = ReduceOp::sum});
    Run of_some;
    if (gpu.rank() != 1) {
      of_some = persistent(gpu, memory, {.op = ReduceOp::sum, .process_set = {set}});
      run(*of_some);
      expect_all(gpu, memory.data(), 2, "the set's sum");
    }
    (void)change(gpu.engine, Collective::remove_process_set, {set});
    if (of_some) {
      std::string error = "none";
      const Time end = soon();
      while (error == "none" && Clock::now() < end) {
        // As long as this rank has not left the set, it may start alone; nobody waits for that.
        error = error_of([&] { of_some->wait(); });
      }
      expect(contains(error, "has ended"), error);
      error = error_of([&] { of_some->start(std::nullopt); });
      expect(contains(error, "has ended"), error);
    }
    run(*of_all);
    expect_all(gpu, memory.data(), 5, "the world's sum");
    gpu.drain();
    meet(gpu, "end");
    gpu.engine.shutdown();
    const std::string error = error_of([&] { of_all->start(std::nullopt); });
    expect(contains(error, "shut down"), error);
  });
}

TEST_CASE("a persistent allreduce may go while other ranks still run it") {
  const NcclFixture fixture({}, 23);
  run_gpu_engines({3}, [&](GpuEngine& gpu) {
    for (int round = 0; round < 5; ++round) {
      auto memory = std::make_unique<DeviceMemory>(gpu.tensor(std::vector<float>(count, 1)));
      const DeviceMemory result = gpu.tensor(std::vector<float>(count, 0));
      Run operation = persistent(
          gpu, *memory, {.op = ReduceOp::sum, .wire_dtype = DataType::float16}, result.data());
      if (gpu.rank() == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      run(*operation);
      operation.reset();
      memory.reset();  // the doubles notice what still uses it
      expect_all(gpu, result.data(), 3, "the sum");
      gpu.drain();
    }
  });
}

TEST_CASE("where a run is staged, a persistent allreduce waits for the GPU when it goes") {
  const NcclFixture fixture({}, 29);
  Options options = double_options();
  options.gpu_backend = "staged";
  run_gpu_engines({2, Gpus::own, Sharing::memory, options}, [&](GpuEngine& gpu) {
    for (int round = 0; round < 20; ++round) {
      auto memory = std::make_unique<DeviceMemory>(gpu.tensor(std::vector<float>(count, 1)));
      gpu.drain();
      Run operation = persistent(gpu, *memory, {.op = ReduceOp::sum});
      operation->start(std::nullopt);
      if (round % 2 == 0) operation->wait();
      operation.reset();
      memory.reset();  // the doubles notice what still uses it
    }
    gpu.drain();
  });
}

TEST_CASE("a start can be left and gone on with") {
  const NcclFixture fixture({.polls_in_progress = 200});
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    Run operation = persistent(gpu, memory, {.op = ReduceOp::sum, .wire_dtype = DataType::float16});
    operation->begin(std::nullopt);
    expect(!operation->start_until(Clock::now()), "NCCL is busy");
    expect(!operation->done(), "NCCL is busy still");
    const std::string error = error_of([&] { operation->start(std::nullopt); });
    expect(contains(error, "started again before it was waited for"), error);
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

TEST_CASE("a call of NCCL that blocks does not keep the engine from its work, nor from ending it") {
  const NcclFixture fixture;
  Options options = double_options();
  options.transfer_timeout = 0;
  run_gpu_engines({2, Gpus::own, Sharing::memory, options}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const DeviceMemory other = gpu.tensor(std::vector<float>(count, 0));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    run(*operation);
    meet(gpu, "before");
    std::string error;
    std::thread blocked;
    if (gpu.rank() == 1) {
      nccl_double().block(1);
      blocked = std::thread([&] { error = error_of([&] { run(*operation); }); });
      while (nccl_double().calls(1).back().function != "ncclAllReduce" ||
             gpu.engine.metrics().at("nccl_calls") == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    meet(gpu, "during");
    for (int round = 0; round < 20; ++round) {
      gpu.finish(gpu.submit(gpu.allreduce(other, count, DataType::float32, "t", ReduceOp::max)));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    gpu.drain();
    meet(gpu, "end");
    if (gpu.rank() == 1) {
      gpu.engine.abort("out of patience");
      blocked.join();
      expect(contains(error, "out of patience"), error);
    }
    expect(contains(later_error_of(*operation), "out of patience"), "on both ranks");
    gpu.drain();
  });
}

TEST_CASE("a world whose graphs are still there can shut down") {
  const NcclFixture fixture;
  LeftGraphs left;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    run(*operation);
    gpu.drain();
    CudaGraphReference graph = captured(gpu, *operation);
    cuda_double().launch(graph, gpu.stream().handle());
    expect_all(gpu, memory.data(), 4, "twice");
    left.keep(std::move(graph));
    meet(gpu, "end");
    gpu.engine.shutdown();
    const std::string error = error_of([&] { operation->start(std::nullopt); });
    expect(contains(error, "shut down"), error);
  });
  CHECK(nccl_double().communicators() == 2);
}

TEST_CASE("graphs that are still there do not keep a broken world from telling everybody") {
  const NcclFixture fixture;
  LeftGraphs left;
  const bool is_late = GENERATE(false, true);  // or a rank aborts
  GpuWorld world{3};
  if (is_late) world.options.transfer_timeout = 3;
  run_gpu_engines(world, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const DeviceMemory other = gpu.tensor(std::vector<float>(count, 1));
    const DeviceMemory third = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    run(*operation);
    gpu.finish(gpu.submit(gpu.allreduce(third, count, DataType::float32, "warm")));
    gpu.drain();
    const CudaGraphReference graph = captured(gpu, *operation);
    left.keep(graph);
    meet(gpu, "before");
    // Rank 1 does not come, neither to the replay nor to the allreduce.
    std::string error = "none";
    if (gpu.rank() == 1) {
      if (!is_late) gpu.engine.abort("out of ideas");
    } else {
      const CudaStream beside = take(CudaStream::create(gpu.stream().device()), "stream");
      Submission submission = gpu.allreduce(other, count, DataType::float32, "x");
      submission.stream = beside.handle();
      const Handle handle = gpu.submit(std::move(submission));
      if (is_late) {
        run(*operation);
      } else {
        cuda_double().launch(graph, gpu.stream().handle());
      }
      error = gpu.error_of(handle);
      expect_ok(beside.wait_until_idle(soon()), "a stream beside");
    }
    gpu.drain();
    const std::string wanted = is_late ? "has not finished a persistent" : "out of ideas";
    if (gpu.rank() != 1) expect(contains(error, wanted), error);
    expect(contains(later_error_of(*operation), wanted), "later");
  });
}

TEST_CASE("a start that fails while a graph is there ends the world, and returns") {
  const NcclFixture fixture;
  LeftGraphs left;
  run_gpu_engines({2}, [&](GpuEngine& gpu) {
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run operation = persistent(gpu, memory, {.op = ReduceOp::sum});
    run(*operation);
    gpu.drain();
    left.keep(captured(gpu, *operation));
    meet(gpu, "before");
    if (gpu.rank() == 1) {
      nccl_double().fail("ncclAllReduce", 1, 1, nccl::system_error, "the link has gone");
    }
    const std::string error = later_error_of(*operation);
    expect(contains(error, "the link has gone"), error);
    gpu.drain();
  });
}

}  // namespace rueda::test
