// All-reduce of tensors of GPUs on several hosts: NCCL within each host, the host's ring across.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/gpu/host_work.h"
#include "backend/gpu/packing.h"
#include "backend/gpu/staged_allreduce.h"

namespace rueda {

// The tensors are packed and reduce-scattered among the GPUs of a host, so that each of them has a
// slice of the host's sum. Those that have the same slice on each host reduce it through the host's
// memory, converted where it travels as a narrower type: that is for the network only. Once all
// slices of a host are back, which its ranks tell each other, so that no GPU waits for the network,
// they are all-gathered within the host, and unpacked. What is larger than a part goes part by
// part.
//
// Every byte crosses the network as often as in a ring of one rank from each host, over as many
// rings at once as the host with the fewest ranks has.
class HierarchicalAllreduce final : public HostWork {
 public:
  // Whether that road was taken, and gives the results that Rueda promises; the same on all ranks.
  [[nodiscard]] static bool suits(const GpuLane& gpu, const Reduction& reduction, int ranks);

  HierarchicalAllreduce(const Reduction& reduction, const std::vector<Piece>& pieces,
                        std::int64_t part_bytes);

  Expected<bool> advance(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_done() const override { return parts_.empty(); }
  [[nodiscard]] const Operation* on_host() const override;
  // Those that carry slices are timed, and this rank has none any more.
  [[nodiscard]] bool waits_for_others() const override { return step_ == Step::meet; }

 private:
  enum class Step { reserve, scatter, scattering, across, meet, gather, gathering };
  // Some of a lane's ranks, as a lane.
  struct Group {
    std::vector<int> members;  // world ranks
    Lane lane;
  };

  Expected<bool> take_step(GpuLane& gpu, const Lane& lane, Backend& host);
  void form_groups(const Hierarchy& hierarchy, const Lane& lane);
  Status reserve(GpuLane& gpu, const Lane& lane);
  Status scatter(GpuLane& gpu, const Lane& lane);
  Status begin_across(GpuLane& gpu, const Lane& lane);
  Status end_across(GpuLane& gpu, const Lane& lane);
  Expected<bool> meet(Backend& host);
  Status gather(GpuLane& gpu, const Lane& lane);
  Status unpack_part(GpuLane& gpu, const Lane& lane);
  [[nodiscard]] const BatchPart& part() const { return parts_.front(); }
  [[nodiscard]] std::byte* slice(int number) const;
  [[nodiscard]] DataType wire() const { return reduction_.wire.value_or(reduction_.dtype); }

  const Reduction reduction_;
  std::vector<BatchPart> parts_;  // to come; the first is under way
  Step step_ = Step::reserve;
  Group local_;   // of this host
  Group across_;  // with the same slice; without members where this rank carries none
  std::int64_t slice_count_ = 0;  // elements; the last slices are partly or wholly padding
  std::size_t slices_bytes_ = 0;  // of all slices
  std::byte* buffer_ = nullptr;   // the slices
  std::byte* narrow_ = nullptr;   // this rank's, as it travels; null where that is as it is
  std::unique_ptr<StagedAllreduce> carrying_;
  std::vector<std::byte> arrivals_;
  std::unique_ptr<Operation> meeting_;
};

}  // namespace rueda
