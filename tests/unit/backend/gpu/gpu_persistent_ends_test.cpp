// How persistent allreduces on GPUs end: normally, with an error, and while CUDA graphs that hold
// them still exist.
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/gpu/unfinished_work.h"
#include "ranks/gpu_persistent_runs.h"

namespace rueda::test::gpu_persistent_ends_test {
namespace {

// The error that repeated starts sooner or later return.
std::string later_error_of(PersistentRun& operation) {
  std::string error = "none";
  const Time end = soon();
  while (error == "none" && Clock::now() < end) {
    error = error_of([&] { run(operation); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return error;
}

// A graph that runs `operation` with each launch.
CudaGraphReference captured(GpuEngine& gpu, PersistentRun& operation) {
  cuda_double().begin_capture(gpu.stream().handle());
  run(operation);
  return cuda_double().end_capture(gpu.stream().handle());
}

// Graphs that the program has not destroyed when Rueda ends. NCCL keeps their communicators until
// then.
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

// An event that a test sets.
class Switch final : public DeviceEvent {
 public:
  void set() { is_set_ = true; }
  Status make_stream_wait(void*) const override { return {}; }
  [[nodiscard]] Expected<bool> reached() const override { return is_set_; }
  [[nodiscard]] bool is_over() const override { return is_set_; }

 private:
  bool is_set_ = false;
};

}  // namespace

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
  const bool hangs = GENERATE(true, false);  // otherwise the other rank does not start it
  GpuWorld world{2};
  world.options.transfer_timeout = 3;  // long enough for ranks to agree on a loaded machine
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
    meet(gpu, "connected");
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
    const int set = add_set(gpu.engine, {0, 2});
    const DeviceMemory memory = gpu.tensor(std::vector<float>(count, 1));
    const Run of_all = persistent(gpu, memory, {.op = ReduceOp::sum});
    Run of_some;
    if (gpu.rank() != 1) {
      of_some = persistent(gpu, memory, {.op = ReduceOp::sum, .process_set = {set}});
      run(*of_some);
      expect_all(gpu, memory.data(), 2, "the set's sum");
    }
    remove_set(gpu.engine, set);
    if (of_some) {
      std::string error = "none";
      const Time end = soon();
      while (error == "none" && Clock::now() < end) {
        // Until this rank has left the set, it may start alone; no other rank waits for that.
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
      memory.reset();  // the doubles notice any further use
      expect_all(gpu, result.data(), 3, "the sum");
      gpu.drain();
    }
  });
}

TEST_CASE("work is timed from when its inputs are found there") {
  const CudaFixture fixture;
  const CudaStream stream = take(CudaStream::create(CudaFixture::device()), "stream");
  std::atomic<bool> released = false;
  cuda_double().enqueue(stream.handle(), [&] {
    while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const auto input = std::make_shared<Switch>();
  UnfinishedWork work;
  const Time begin = Clock::now();
  const auto waited_after = [&](int seconds_later) {
    return to_seconds(take(work.look(begin + std::chrono::seconds(seconds_later)), "look"));
  };
  const CurrentDevice current(*stream.device());
  work.remember(take(GpuEvent::after(stream), "event"), {input}, begin);
  CHECK(waited_after(1) == 0);
  input->set();
  CHECK(waited_after(9) == 0);
  CHECK(waited_after(12) == 3);
  released = true;
  expect_ok(stream.wait_until_idle(soon()), "the stream");
  CHECK(waited_after(20) == 0);
  CHECK(work.is_empty());
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
      memory.reset();  // the doubles notice any further use
    }
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
      const Time end = soon();
      while (nccl_double().blocked_calls() == 0 && Clock::now() < end) {
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
  const bool is_late = GENERATE(false, true);  // otherwise a rank aborts
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
    // Rank 1 takes part in neither the replay nor the allreduce.
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

}  // namespace rueda::test::gpu_persistent_ends_test
