// Allreduce and reduce-scatter among the ranks of one host, without messages.
//
// Up to 56 bytes travel in the cache line that announces them. Up to HostPolicy::flat_limit, every
// rank copies its tensor into its slot and combines all slots itself. Larger tensors, and smaller
// registered ones, are divided among the ranks, which access each other's memory, see
// DirectReduction. If the kernel is slow to access unregistered tensors, or copying whole tensors
// is, single ones go through the slots chunk by chunk, see Staging. Inputs are combined in rank
// order, so all ranks hold the same bits. In a reduce-scatter, each rank combines its own part.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "onehost/direct_reduction.h"
#include "onehost/host_collective.h"
#include "onehost/host_reach.h"
#include "onehost/host_tensors.h"
#include "onehost/staging.h"
#include "plan/leaf_tree.h"
#include "reduce/combine.h"
#include "reduce/piece.h"

namespace rueda {

class HostReduction final : public HostCollective {
 public:
  // Allreduce. Reduces the pieces as if they were contiguous. Their number and lengths, the
  // combination and the policy are the same on all ranks. If the ranks cannot access each other's
  // memory, pieces that are above the flat limit and may not be staged must be registered.
  // `contributors`: number of ranks that contribute.
  HostReduction(HostChannel& channel, const HostPolicy& policy, const Combination& combination,
                int contributors, std::vector<Piece> pieces, Begin begin = Begin::now);
  // Allreduce of partial sums of leaves: a piece's input is an array for each of this rank's. Ranks
  // access each other's memory, whatever the size.
  HostReduction(HostChannel& channel, const HostPolicy& policy, const Combination& combination,
                std::shared_ptr<const LeafPlan> leaves, std::vector<Piece> pieces);
  // Reduce-scatter of `input` (null: no contribution): lengths[r] elements for rank r.
  HostReduction(HostChannel& channel, const HostPolicy& policy, const Combination& combination,
                int contributors, const std::byte* input, std::byte* output,
                const std::vector<std::int64_t>& lengths);
  ~HostReduction() override { quiesce(is_direct_ || may_be_direct_); }

  // Repeats the run with the same pieces. The last run must be done.
  using HostCollective::start;

 private:
  HostReduction(HostChannel& channel, const HostPolicy& policy, const Combination& combination,
                bool all_contribute, std::vector<Piece>&& pieces,
                std::shared_ptr<const LeafPlan>&& leaves);

  void prepare() override;
  Work work() override;
  [[nodiscard]] bool shares_tensors() const override { return is_direct_; }
  [[nodiscard]] bool is_shared_work() const override { return is_direct_ || staging_; }
  [[nodiscard]] std::vector<int> awaited_at_work() const override {
    return staging_ ? staging_->awaited() : std::vector<int>{};
  }

  void find_reach();
  void expose();

  // --- By copies
  [[nodiscard]] bool fits_line() const {
    return tensors_.bytes() <= line_bytes && all_contribute_ &&
           (tensors_.leaves() == nullptr || tensors_.bytes() == 0);
  }
  void copy_in(std::byte* target) const;
  void copy_into_slot();
  // For tensors within the flat limit. This rank's own place is known without reading its line,
  // which would have to wait: see HostChannel::all_arrived().
  [[nodiscard]] Place place_of_copy(int member) const;
  void combine_copies(bool in_lines);
  Work work_flat();

  // --- For memory that other ranks cannot access directly
  [[nodiscard]] bool may_be_staged() const;
  void begin_staged();
  Work work_staged();

  // --- For memory that all ranks can access
  void begin_direct();
  Work work_direct();

  const bool all_contribute_;
  const Combiner combiner_;
  HostTensors tensors_;
  std::vector<Reach> inputs_;  // of this rank's pieces; only if exposed
  std::vector<Reach> outputs_;

  Place own_place_ = Place::nothing;  // see place_of_copy()
  bool is_direct_ = false;            // ranks access each other's tensors in this run
  bool may_be_direct_ = false;        // they may turn out to
  bool started_ = false;              // the work of this run

  std::optional<Staging> staging_;
  DirectReduction direct_;
  std::vector<const std::byte*> copies_;  // of one piece, by member
};

}  // namespace rueda
