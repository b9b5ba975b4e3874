#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/gpu/exchange_task.h"

namespace rueda {

namespace {

// Works on bytes, of whatever type. Ranks that have joined contribute 0 bytes.
class AllgatherTask final : public ExchangeTask {
 public:
  AllgatherTask(const std::byte* input, std::byte* output, std::vector<std::int64_t> lengths,
                int rank)
      : input_(input),
        output_(output),
        lengths_(std::move(lengths)),
        rank_(static_cast<std::size_t>(rank)),
        total_(std::accumulate(lengths_.begin(), lengths_.end(), std::int64_t{0})) {}

  [[nodiscard]] bool suits_nccl(const GpuLane&) const override { return true; }

  Status enqueue(GpuLane& gpu, const Lane& lane) override {
    if (total_ == 0) return {};
    lane.counters->nccl_calls.add(1);
    const StreamHandle stream = gpu.stream().handle();
    const auto own = static_cast<std::uint64_t>(lengths_[rank_]);
    const bool even = std::all_of(lengths_.begin(), lengths_.end(),
                                  [&](std::int64_t length) { return length == lengths_.front(); });
    if (even) {
      return gpu.communicator()->allgather(input_, output_, own, DataType::uint8, stream);
    }
    std::vector<NcclPart> to(lengths_.size(), {const_cast<std::byte*>(input_), own});
    std::vector<NcclPart> from;
    std::byte* part = output_;
    for (const std::int64_t length : lengths_) {
      from.push_back({part, static_cast<std::uint64_t>(length)});
      part += length;
    }
    return gpu.communicator()->alltoall(to, from, DataType::uint8, stream);
  }

 protected:
  [[nodiscard]] Input input() const override {
    return {input_, static_cast<std::size_t>(lengths_[rank_])};
  }
  [[nodiscard]] std::size_t output_bytes() const override {
    return static_cast<std::size_t>(total_);
  }
  [[nodiscard]] std::byte* output() const override { return output_; }
  [[nodiscard]] std::unique_ptr<Operation> start(GpuLane&, const Lane& lane, Backend& host,
                                                 const std::byte* input,
                                                 std::byte* output) override {
    return host.allgather(lane, input, output, lengths_);
  }

 private:
  const std::byte* input_;
  std::byte* output_;
  const std::vector<std::int64_t> lengths_;
  const std::size_t rank_;
  const std::int64_t total_;
};

class BroadcastTask final : public ExchangeTask {
 public:
  BroadcastTask(std::byte* data, std::int64_t bytes, int root, int rank)
      : data_(data), bytes_(static_cast<std::size_t>(bytes)), root_(root), rank_(rank) {}

  [[nodiscard]] bool suits_nccl(const GpuLane&) const override { return true; }

  Status enqueue(GpuLane& gpu, const Lane& lane) override {
    if (bytes_ == 0) return {};
    lane.counters->nccl_calls.add(1);
    return gpu.communicator()->broadcast(data_, data_, bytes_, DataType::uint8, root_,
                                         gpu.stream().handle());
  }

 protected:
  [[nodiscard]] Input input() const override {
    return rank_ == root_ ? Input{data_, bytes_} : Input{};
  }
  [[nodiscard]] std::size_t output_bytes() const override { return bytes_; }
  [[nodiscard]] std::byte* output() const override { return rank_ == root_ ? nullptr : data_; }
  [[nodiscard]] std::unique_ptr<Operation> start(GpuLane&, const Lane& lane, Backend& host,
                                                 const std::byte* input,
                                                 std::byte* output) override {
    // The host's broadcast reads at the root and writes elsewhere.
    std::byte* const data = rank_ == root_ ? const_cast<std::byte*>(input) : output;
    return host.broadcast(lane, data, static_cast<std::int64_t>(bytes_), root_);
  }

 private:
  std::byte* data_;
  const std::size_t bytes_;
  const int root_;
  const int rank_;
};

}  // namespace

std::unique_ptr<GpuTask> make_allgather_task(const std::byte* input, std::byte* output,
                                             std::vector<std::int64_t> lengths, int rank) {
  return std::make_unique<AllgatherTask>(input, output, std::move(lengths), rank);
}

std::unique_ptr<GpuTask> make_broadcast_task(std::byte* data, std::int64_t bytes, int root,
                                             int rank) {
  return std::make_unique<BroadcastTask>(data, bytes, root, rank);
}

}  // namespace rueda
