#include <numeric>
#include <utility>

#include "backend/gpu/exchange_task.h"

namespace rueda {

namespace {

// Only the senders know how many rows they have, so the ranks exchange the counts on the host
// first.
class AlltoallTask final : public ExchangeTask {
 public:
  AlltoallTask(AlltoallInput input, AllocateRows allocate, int rank)
      : input_(std::move(input)),
        allocate_(std::move(allocate)),
        rank_(static_cast<std::size_t>(rank)),
        total_(std::accumulate(input_.rows.begin(), input_.rows.end(), std::int64_t{0})) {}

  [[nodiscard]] bool suits_nccl(const GpuLane&) const override { return true; }

  // Exchanges each rank's row counts, and the room it has for the result.
  [[nodiscard]] std::unique_ptr<Operation> prepare(GpuLane&, const Lane& lane, Backend& host,
                                                   Way) override {
    const std::size_t ranks = input_.rows.size();
    own_ = input_.rows;
    own_.push_back(static_cast<std::int64_t>(input_.output_bytes));
    all_.resize(ranks * own_.size());
    const std::vector<std::int64_t> lengths(
        ranks, static_cast<std::int64_t>(own_.size() * sizeof(std::int64_t)));
    return host.allgather(lane, reinterpret_cast<const std::byte*>(own_.data()),
                          reinterpret_cast<std::byte*>(all_.data()), lengths);
  }

  [[nodiscard]] std::optional<Status> reserve(GpuLane& gpu, Way way) override {
    output_ = allocate_(rows_for(rank_));
    if (output_ == nullptr && output_bytes() > 0) {
      const Status why = gpu.memory().take_shortage();
      return why.ok() ? Status(ErrorCode::internal, "no memory for the result") : why;
    }
    if (way == Way::nccl && all_have_memory()) return std::nullopt;
    const auto staging = ExchangeTask::reserve(gpu, way);
    return staging ? staging : Status();
  }

  Status enqueue(GpuLane& gpu, const Lane& lane) override {
    lane.counters->nccl_calls.add(1);
    const std::vector<std::int64_t> received = rows_for(rank_);
    std::byte* target = output_;
    auto* source = const_cast<std::byte*>(input_.data);
    std::vector<NcclPart> to;
    std::vector<NcclPart> from;
    for (std::size_t other = 0; other < received.size(); ++other) {
      const std::size_t sent = static_cast<std::size_t>(input_.rows[other]) * input_.row_bytes;
      const std::size_t taken = static_cast<std::size_t>(received[other]) * input_.row_bytes;
      to.push_back({source, sent});
      from.push_back({target, taken});
      source += sent;
      target += taken;
    }
    return gpu.communicator()->alltoall(to, from, DataType::uint8, gpu.stream().handle());
  }

 protected:
  [[nodiscard]] Input input() const override {
    return {input_.data, static_cast<std::size_t>(total_) * input_.row_bytes};
  }
  [[nodiscard]] std::size_t output_bytes() const override { return bytes_for(rank_); }
  [[nodiscard]] std::byte* output() const override { return output_; }
  [[nodiscard]] std::unique_ptr<Operation> start(GpuLane&, const Lane& lane, Backend& host,
                                                 const std::byte* input,
                                                 std::byte* output) override {
    AlltoallInput on_host = input_;
    on_host.data = input;
    return host.alltoall(lane, std::move(on_host),
                         [output](const std::vector<std::int64_t>&) { return output; });
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> rows_for(std::size_t rank) const {
    std::vector<std::int64_t> rows;
    for (std::size_t other = 0; other < input_.rows.size(); ++other) {
      rows.push_back(all_[other * own_.size() + rank]);
    }
    return rows;
  }
  [[nodiscard]] std::size_t bytes_for(std::size_t rank) const {
    const std::vector<std::int64_t> rows = rows_for(rank);
    return static_cast<std::size_t>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})) *
           input_.row_bytes;
  }
  // Same on all ranks.
  [[nodiscard]] bool all_have_memory() const {
    const std::size_t ranks = input_.rows.size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto has = static_cast<std::size_t>(all_[rank * own_.size() + ranks]);
      if (bytes_for(rank) != has) return false;
    }
    return true;
  }

  const AlltoallInput input_;
  const AllocateRows allocate_;
  const std::size_t rank_;
  const std::int64_t total_;
  // By rank: its row counts for each rank, then its room.
  std::vector<std::int64_t> own_;
  std::vector<std::int64_t> all_;
  std::byte* output_ = nullptr;
};

}  // namespace

std::unique_ptr<GpuTask> make_alltoall_task(AlltoallInput input, AllocateRows allocate, int rank) {
  return std::make_unique<AlltoallTask>(std::move(input), std::move(allocate), rank);
}

}  // namespace rueda
