#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/gpu/exchange_task.h"
#include "backend/gpu/nccl_factor.h"
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
        rank_(static_cast<std::size_t>(rank)),
        count_(std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0})) {}

  [[nodiscard]] bool suits_nccl(const GpuLane&) const override {
    // A rank that has joined would have to make the identity: rare, and the host does it.
    const bool all_contribute = reduction_.contributors == static_cast<int>(lengths_.size());
    return all_contribute &&
           nccl_combination(reduction_, static_cast<int>(lengths_.size())).has_value();
  }

  Status enqueue(GpuLane& gpu, const Lane& lane) override {
    if (count_ == 0) return {};
    lane.counters->nccl_calls.add(1);
    NcclCommunicator& communicator = *gpu.communicator();
    const NcclCombination how = *nccl_combination(reduction_, static_cast<int>(lengths_.size()));
    const StreamHandle stream = gpu.stream().handle();
    const bool even = std::all_of(lengths_.begin(), lengths_.end(),
                                  [&](std::int64_t length) { return length == lengths_.front(); });
    if (even) {
      return communicator.reduce_scatter(input_, output_,
                                         static_cast<std::uint64_t>(lengths_.front()), how, stream);
    }
    // Parts of different lengths: one reduction to each rank.
    const std::byte* next = input_;
    return communicator.in_group(communicator.size(), [&](int root) -> Status {
      const std::int64_t length = lengths_[static_cast<std::size_t>(root)];
      const std::byte* const part = std::exchange(next, next + bytes_of(length));
      if (length == 0) return {};
      return communicator.reduce(part, output_, static_cast<std::uint64_t>(length), how, root,
                                 stream);
    });
  }

 protected:
  [[nodiscard]] Input input() const override {
    return {input_, input_ != nullptr ? bytes_of(count_) : 0};
  }
  [[nodiscard]] std::size_t output_bytes() const override { return bytes_of(lengths_[rank_]); }
  [[nodiscard]] std::byte* output() const override { return output_; }
  [[nodiscard]] std::unique_ptr<Operation> start(GpuLane&, const Lane& lane, Backend& host,
                                                 const std::byte* input,
                                                 std::byte* output) override {
    return host.reduce_scatter(lane, reduction_, input, output, lengths_);
  }

 private:
  [[nodiscard]] std::size_t bytes_of(std::int64_t count) const {
    return static_cast<std::size_t>(count) * size_of(reduction_.dtype);
  }

  const Reduction reduction_;
  const std::byte* input_;
  std::byte* output_;
  const std::vector<std::int64_t> lengths_;
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
