#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/gpu/exchange_task.h"
#include "backend/gpu/nccl_factor.h"
#include "backend/gpu/packing.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

class ReduceScatterTask final : public ExchangeTask {
 public:
  ReduceScatterTask(const Reduction& reduction, const std::byte* input, std::byte* output,
                    std::vector<std::int64_t> lengths, int rank)
      : reduction_(reduction),
        input_(input),
        output_(output),
        lengths_(std::move(lengths)),
        plan_(nccl_plan(reduction).value_or(NcclPlan())),
        rank_(static_cast<std::size_t>(rank)),
        count_(std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0})) {}

  [[nodiscard]] bool suits_nccl(const GpuLane& gpu) const override {
    // A rank that has joined would have to generate the identity: rare, so left to the host.
    const int ranks = static_cast<int>(lengths_.size());
    return reduction_.contributors == ranks && !reduction_.wire &&
           nccl_can_take_part(reduction_, ranks, gpu.path().all_have_kernels());
  }

  Status enqueue(GpuLane& gpu, const Lane& lane) override {
    if (count_ == 0) return {};
    lane.counters->nccl_calls.add(1);
    NcclCommunicator& communicator = *gpu.communicator();
    const NcclCombination how = plan_.how;
    const StreamHandle stream = gpu.stream().handle();
    const bool even = std::all_of(lengths_.begin(), lengths_.end(),
                                  [&](std::int64_t length) { return length == lengths_.front(); });
    if (even) {
      return communicator.reduce_scatter(input_, output_,
                                         static_cast<std::uint64_t>(lengths_.front()), how, stream);
    }
    return communicator.reduce_scatter(input_, output_, lengths_, how, stream);
  }

  // Scales after the sum, which needs no extra memory: Rueda must not write to the input.
  Status conclude(GpuLane& gpu, const Lane& lane) override {
    return scale(gpu, lane, output_, output_, lengths_[rank_], reduction_.dtype,
                 plan_.before * plan_.after);
  }

 protected:
  [[nodiscard]] Input input() const override {
    return {input_, input_ != nullptr ? bytes_of(count_, reduction_.dtype) : 0};
  }
  [[nodiscard]] std::size_t output_bytes() const override {
    return bytes_of(lengths_[rank_], reduction_.dtype);
  }
  [[nodiscard]] std::byte* output() const override { return output_; }
  [[nodiscard]] std::unique_ptr<Operation> start(GpuLane&, const Lane& lane, Backend& host,
                                                 const std::byte* input,
                                                 std::byte* output) override {
    return host.reduce_scatter(lane, reduction_, input, output, lengths_);
  }

 private:
  const Reduction reduction_;
  const std::byte* input_;
  std::byte* output_;
  const std::vector<std::int64_t> lengths_;
  const NcclPlan plan_;  // if NCCL is used
  const std::size_t rank_;
  const std::int64_t count_;
};

}  // namespace

std::unique_ptr<GpuTask> make_reduce_scatter_task(const Reduction& reduction,
                                                  const std::byte* input, std::byte* output,
                                                  std::vector<std::int64_t> lengths, int rank) {
  return std::make_unique<ReduceScatterTask>(reduction, input, output, std::move(lengths), rank);
}

}  // namespace rueda
