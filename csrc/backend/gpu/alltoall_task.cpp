#include <new>
#include <numeric>
#include <utility>

#include "backend/gpu/exchange_task.h"

namespace rueda {

namespace {

// How many rows come from each rank is known only to the senders: the host asks them first.
class AlltoallTask final : public ExchangeTask {
 public:
  AlltoallTask(AlltoallInput input, AllocateRows allocate, int rank)
      : input_(std::move(input)),
        allocate_(std::move(allocate)),
        rank_(static_cast<std::size_t>(rank)),
        total_(std::accumulate(input_.rows.begin(), input_.rows.end(), std::int64_t{0})) {}

  [[nodiscard]] bool suits_nccl(const GpuLane&) const override { return true; }

  [[nodiscard]] std::unique_ptr<Operation> prepare(GpuLane&, const Lane& lane,
                                                   Backend& host) override {
    const std::size_t ranks = input_.rows.size();
    all_rows_.resize(ranks * ranks);
    const std::vector<std::int64_t> lengths(
        ranks, static_cast<std::int64_t>(ranks * sizeof(std::int64_t)));
    return host.allgather(lane, reinterpret_cast<const std::byte*>(input_.rows.data()),
                          reinterpret_cast<std::byte*>(all_rows_.data()), lengths);
  }

  Status enqueue(GpuLane& gpu, const Lane& lane) override {
    lane.counters->nccl_calls.add(1);
    const std::size_t ranks = input_.rows.size();
    std::vector<std::int64_t> received;
    for (std::size_t other = 0; other < ranks; ++other) {
      received.push_back(all_rows_[other * ranks + rank_]);
    }
    std::byte* target = allocate_(received);
    auto* source = const_cast<std::byte*>(input_.data);
    std::vector<NcclPart> to;
    std::vector<NcclPart> from;
    for (std::size_t other = 0; other < ranks; ++other) {
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
  [[nodiscard]] std::size_t output_bytes() const override { return exchanged_bytes_; }
  [[nodiscard]] std::byte* output() const override { return output_; }
  [[nodiscard]] const std::byte* exchanged() const override { return exchanged_; }
  [[nodiscard]] std::unique_ptr<Operation> start(GpuLane& gpu, const Lane& lane, Backend& host,
                                                 const std::byte* input, std::byte*) override {
    AlltoallInput on_host = input_;
    on_host.data = input;
    return host.alltoall(
        lane, std::move(on_host), [this, &gpu](const std::vector<std::int64_t>& rows) {
          const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
          exchanged_bytes_ = static_cast<std::size_t>(total) * input_.row_bytes;
          auto memory = gpu.staging(exchanged_slot, exchanged_bytes_);
          if (!memory) throw std::bad_alloc();
          output_ = allocate_(rows);
          exchanged_ = (*memory)->data();
          return exchanged_;
        });
  }

 private:
  const AlltoallInput input_;
  const AllocateRows allocate_;
  const std::size_t rank_;
  const std::int64_t total_;
  std::vector<std::int64_t> all_rows_;  // [from][to]
  std::byte* exchanged_ = nullptr;
  std::size_t exchanged_bytes_ = 0;
  std::byte* output_ = nullptr;
};

}  // namespace

std::unique_ptr<GpuTask> make_alltoall_task(AlltoallInput input, AllocateRows allocate, int rank) {
  return std::make_unique<AlltoallTask>(std::move(input), std::move(allocate), rank);
}

}  // namespace rueda
