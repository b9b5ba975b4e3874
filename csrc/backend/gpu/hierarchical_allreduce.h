// All-reduce of tensors of GPUs on several hosts: NCCL within each host, the host's ring across.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/gpu/host_work.h"
#include "backend/gpu/staged_allreduce.h"

namespace rueda {

// The tensors are packed and reduce-scattered among the GPUs of a host, so that each of them has a
// slice of the host's sum. Those that have the same slice on each host reduce it through the host's
// memory, converted where it travels as a narrower type: that is for the network only. Then the
// slices are all-gathered within the host, and unpacked.
//
// Every byte crosses the network as often as in a ring of one rank from each host, over as many
// rings at once as the host with the fewest ranks has.
class HierarchicalAllreduce final : public HostWork {
 public:
  // Whether that road was taken, and gives the results that Rueda promises; the same on all ranks.
  [[nodiscard]] static bool suits(const GpuLane& gpu, const Reduction& reduction, int ranks);

  HierarchicalAllreduce(const Reduction& reduction, std::vector<Piece> pieces);

  Expected<bool> advance(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_done() const override { return step_ == Step::done; }
  [[nodiscard]] const Operation* on_host() const override {
    return across_ ? across_->on_host() : nullptr;
  }

 private:
  enum class Step { scatter, scattering, across, gathering, done };

  Expected<bool> take_step(GpuLane& gpu, const Lane& lane, Backend& host);
  Status scatter(GpuLane& gpu, const Lane& lane);
  Status begin_across(GpuLane& gpu, const Lane& lane);
  Status end_across(GpuLane& gpu, const Lane& lane);
  Status gather(GpuLane& gpu, const Lane& lane);
  [[nodiscard]] std::byte* slice(int number) const;
  [[nodiscard]] DataType wire() const { return reduction_.wire.value_or(reduction_.dtype); }

  const Reduction reduction_;
  const std::vector<Piece> pieces_;
  std::int64_t count_ = 0;
  std::int64_t slice_count_ = 0;  // elements; the last slices are partly or wholly padding
  Step step_ = Step::scatter;
  std::byte* buffer_ = nullptr;    // the slices
  std::byte* narrow_ = nullptr;    // this rank's, as it travels; null where that is as it is
  std::vector<int> across_ranks_;  // world ranks
  Lane across_lane_;
  std::unique_ptr<StagedAllreduce> across_;
};

}  // namespace rueda
