// Allreduce and reduce-scatter among the ranks of one host, without a message in between.
//
// Up to 56 bytes travel in the cache line that announces them; up to HostPolicy::flat_limit every
// rank copies its tensor into its slot and combines all slots itself. Larger tensors are divided
// into chunks: whoever takes a chunk combines it straight from the tensors of all ranks and writes
// the result straight into all of them. Inputs are combined in the order of the ranks, so all ranks
// hold the same bits. Nothing is copied on the way where tensors are registered. Where the kernel
// is slow to reach those that are not, they go through the slots chunk by chunk, see Staging. In a
// reduce-scatter each rank combines the part that is its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "onehost/host_collective.h"
#include "onehost/host_reach.h"
#include "onehost/staging.h"
#include "plan/leaf_tree.h"
#include "reduce/combine.h"
#include "reduce/piece.h"
#include "reduce/tree_combiner.h"

namespace rueda {

class HostReduction final : public HostCollective {
 public:
  // Allreduce. The pieces are reduced as if they lay one after the other. Their number and
  // lengths, the combination and the policy are the same on all ranks. Where the ranks cannot reach
  // into each other's memory, pieces above the flat limit must be registered.
  // `contributors`: how many ranks do not give null.
  HostReduction(HostChannel& channel, const HostPolicy& policy, const Combination& combination,
                int contributors, std::vector<Piece> pieces, Begin begin = Begin::now);
  // Allreduce of partial sums of leaves: a piece's input is an array for each of this rank's. Ranks
  // reach into each other's memory, whatever the size.
  HostReduction(HostChannel& channel, const HostPolicy& policy, const Combination& combination,
                std::shared_ptr<const LeafPlan> leaves, std::vector<Piece> pieces);
  // Reduce-scatter of `input` (null: nothing is contributed): lengths[r] elements for rank r.
  HostReduction(HostChannel& channel, const HostPolicy& policy, const Combination& combination,
                int contributors, const std::byte* input, std::byte* output,
                const std::vector<std::int64_t>& lengths);
  ~HostReduction() override { quiesce(direct_ || may_be_direct_); }

  // Once more, with the same pieces. The last run must be done.
  using HostCollective::start;

 private:
  // A part of a piece that lies within a chunk.
  struct Part {
    std::size_t piece;
    std::int64_t first;
    std::int64_t count;
  };

  void prepare() override;
  Work work() override;
  [[nodiscard]] bool shares_tensors() const override { return direct_; }
  [[nodiscard]] std::vector<int> awaited_at_work() const override {
    return staging_ ? staging_->awaited() : std::vector<int>{};
  }

  [[nodiscard]] std::size_t bytes_of(std::int64_t count) const {
    return static_cast<std::size_t>(count) * element_;
  }
  [[nodiscard]] bool fits_line() const {
    return bytes_ <= line_bytes && all_contribute_ && (!leaves_ || bytes_ == 0);
  }
  // How many arrays a member's input has, how many all have, and how long this rank's is.
  [[nodiscard]] int inputs_of(int member) const {
    return leaves_ ? leaves_->partials_of(member) : 1;
  }
  [[nodiscard]] std::size_t input_count() const {
    return leaves_ ? leaves_->sources.size() : static_cast<std::size_t>(channel_.size());
  }
  [[nodiscard]] std::size_t input_bytes(const Piece& piece) const;
  void copy_in(std::byte* target) const;
  void copy_into_slot();
  void expose();
  [[nodiscard]] Exposure exposure_of(int member, std::size_t piece) const;
  // Of a tensor within the flat limit. This rank's own is known without a look at its line, for
  // which it would wait: see HostChannel::all_arrived().
  [[nodiscard]] Place place_of_copy(int member) const;
  [[nodiscard]] std::byte* own_output(std::size_t piece, std::int64_t first) const;

  void combine(std::span<std::byte* const> targets, std::int64_t count, Stores stores);
  void combine_copies(bool in_lines);
  Work work_flat();
  [[nodiscard]] bool may_be_staged() const;
  void begin_staged();
  Work work_staged();
  void begin_direct();
  Work work_direct();
  [[nodiscard]] Status combine_chunk(std::int64_t first, std::int64_t count);
  [[nodiscard]] Status combine_part(const Part& part);
  [[nodiscard]] Status find_inputs(int member, const Part& part);
  [[nodiscard]] std::byte* scratch(std::size_t index) const;

  const std::size_t element_;
  const bool all_contribute_;
  const Combination combination_;
  const Combiner combiner_;
  const std::shared_ptr<const LeafPlan> leaves_;
  std::optional<TreeCombiner> tree_;
  std::vector<Piece> pieces_;
  std::int64_t count_ = 0;
  std::size_t bytes_ = 0;
  // Reduce-scatter: which elements of the only piece this rank is to have.
  struct Range {
    std::int64_t first;
    std::int64_t count;
  };
  std::optional<Range> own_part_;
  std::vector<Reach> inputs_;  // of this rank's pieces; only where they are exposed
  std::vector<Reach> outputs_;

  Place own_place_ = Place::nothing;  // see place_of_copy()
  bool direct_ = false;               // ranks reach into each other's tensors, in this run
  bool may_be_direct_ = false;        // others may find that they do
  bool started_ = false;              // the work, in this run
  bool claims_ = false;               // chunks are claimed, not divided beforehand
  std::int64_t chunk_ = 0;
  std::int64_t own_next_ = 0;  // where nothing is claimed: what is left to do of this rank's share
  std::int64_t own_end_ = 0;

  std::optional<Staging> staging_;

  std::vector<std::byte*> targets_;
  std::vector<const std::byte*> sources_;  // by member
  std::vector<std::size_t> order_;         // of leaves: which of them come one after the other
  std::vector<const std::byte*> ordered_;
  struct Push {
    int member;
    std::uint64_t where;
  };
  std::vector<Push> pushes_;
};

}  // namespace rueda
