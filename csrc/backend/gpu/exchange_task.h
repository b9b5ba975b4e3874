// Collectives other than allreduce, on one GPU tensor. When staged, the whole input is copied from
// the GPU, exchanged on the host, and the whole output copied back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/gpu/gpu_task.h"
#include "cuda/stream.h"

namespace rueda {

class ExchangeTask : public GpuTask {
 public:
  // Host memory for input and output; its size differs between ranks.
  [[nodiscard]] std::optional<Status> reserve(GpuLane& gpu, Way way) override;
  Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) final;
  [[nodiscard]] bool is_staged() const final { return step_ == Step::done; }
  [[nodiscard]] const Operation* on_host() const final { return exchange_.get(); }

 protected:
  // The memory of this rank that is read; null if none.
  struct Input {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] virtual Input input() const = 0;
  // Host memory needed for the output; a broadcast's root uses its input.
  [[nodiscard]] virtual std::size_t output_bytes() const = 0;
  [[nodiscard]] virtual std::unique_ptr<Operation> start(GpuLane& gpu, const Lane& lane,
                                                         Backend& host, const std::byte* input,
                                                         std::byte* output) = 0;
  // Where the output goes after the exchange; null if it is not wanted.
  [[nodiscard]] virtual std::byte* output() const = 0;

 private:
  enum class Step { fetch, wait, exchange, done };

  Step step_ = Step::fetch;
  std::optional<CudaEvent> fetched_;
  std::byte* host_input_ = nullptr;
  std::byte* host_output_ = nullptr;
  std::unique_ptr<Operation> exchange_;
};

[[nodiscard]] std::unique_ptr<GpuTask> make_reduce_scatter_task(const Reduction& reduction,
                                                                const std::byte* input,
                                                                std::byte* output,
                                                                std::vector<std::int64_t> lengths,
                                                                int rank);
[[nodiscard]] std::unique_ptr<GpuTask> make_allgather_task(const std::byte* input,
                                                           std::byte* output,
                                                           std::vector<std::int64_t> lengths,
                                                           int rank);
[[nodiscard]] std::unique_ptr<GpuTask> make_broadcast_task(std::byte* data, std::int64_t bytes,
                                                           int root, int rank);
[[nodiscard]] std::unique_ptr<GpuTask> make_alltoall_task(AlltoallInput input,
                                                          AllocateRows allocate, int rank);

}  // namespace rueda
