// Engines on threads, each with a GPU of the test doubles.
#pragma once

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks/engine_ranks.h"
#include "unit/backend/nccl/nccl_fixture.h"
#include "unit/contains.h"

namespace rueda::test {

// The values of a rank's tensor, and the sum over all ranks.
template <class T>
std::vector<T> filled(std::size_t count, int rank) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<int>(i % 7) + rank + 1);
  }
  return values;
}

template <class T>
std::vector<T> summed(std::size_t count, int size) {
  std::vector<T> sum(count);
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] = static_cast<T>(size * static_cast<int>(i % 7) + size * (size + 1) / 2);
  }
  return sum;
}

// Waits until the operation no longer uses the tensors' memory, even if the world is broken.
inline void outlast(const Handle& handle) {
  const Time end = soon();
  while (!handle.done() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!handle.done()) return;
  const auto event = handle.state()->output.finished;
  while (event && !event->is_over() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A rank's engine, and the stream on which the test writes and reads tensors.
class GpuEngine {
 public:
  GpuEngine(int rank, int device, Runtime& its_engine)
      : rank_(rank),
        ordinal_(device),
        engine(its_engine),
        stream_(take(CudaStream::create(CudaFixture::device(device)), "stream")) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const CudaStream& stream() const { return stream_; }

  template <class T>
  [[nodiscard]] DeviceMemory tensor(const std::vector<T>& content) const {
    return on_device(stream_, content);
  }
  template <class T>
  [[nodiscard]] std::vector<T> read(const std::byte* memory, std::size_t count) const {
    return on_host<T>(stream_, memory, count);
  }

  // An operation in place on `memory`.
  [[nodiscard]] Submission submission(Collective collective, const DeviceMemory& memory,
                                      Shape shape, DataType dtype, const std::string& name,
                                      ReduceOp op = ReduceOp::sum) const {
    Submission made;
    made.request.name = name;
    made.request.collective = collective;
    made.request.dtype = dtype;
    made.request.op = op;
    made.request.on_gpu = true;
    made.request.shape = std::move(shape);
    made.input = memory.data();
    made.output = memory.data();
    made.device = ordinal_;
    made.stream = stream_.handle();
    return made;
  }
  [[nodiscard]] Submission allreduce(const DeviceMemory& memory, std::size_t count, DataType dtype,
                                     const std::string& name, ReduceOp op = ReduceOp::sum) const {
    return submission(Collective::allreduce, memory, {static_cast<std::int64_t>(count)}, dtype,
                      name, op);
  }

  Handle submit(Submission submission) const { return test::submit(engine, std::move(submission)); }
  // Later work on this stream sees the result.
  void finish(const Handle& handle) const {
    test::finish(handle);
    handle.wait_on(stream_.handle());
  }
  // Call it before freeing memory that the stream may still use.
  void drain() const { expect_ok(stream_.wait_until_idle(soon()), "an idle stream"); }
  // The error's text, or "none".
  [[nodiscard]] std::string error_of(const Handle& handle) const {
    try {
      finish(handle);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

 private:
  int rank_;
  int ordinal_;

 public:
  Runtime& engine;

 private:
  CudaStream stream_;
};

// All-reduces `memory`, allocated here, until NCCL fails: every rank gets NCCL's error.
inline void expect_link_error(GpuEngine& gpu, DeviceMemory& memory, std::size_t elements) {
  memory = gpu.tensor(std::vector<float>(elements, 1));
  std::string error = "none";
  for (int step = 0; step < 50 && error == "none"; ++step) {
    error = gpu.error_of(gpu.submit(gpu.allreduce(memory, elements, DataType::float32, "x")));
  }
  expect(contains(error, "the link has gone"), error);
  gpu.drain();
}

// Whether each rank has a GPU of its own.
enum class Gpus { own, shared };

struct GpuWorld {
  int size = 2;
  Gpus gpus = Gpus::own;
  Sharing sharing = Sharing::memory;
  Options options = double_options();
};

inline void run_gpu_engines(const GpuWorld& world, const std::function<void(GpuEngine&)>& body) {
  run_engines(
      world.size, world.options,
      [&](int rank, Runtime& engine) {
        GpuEngine mine(rank, world.gpus == Gpus::own ? rank : 0, engine);
        body(mine);
      },
      nullptr, world.sharing);
}

}  // namespace rueda::test
