// How ranks of a host reduce tensors into which they can all reach: whoever takes a chunk combines
// it straight from the tensors of all ranks and writes the result straight into all of them.
//
// Chunks are claimed one by one, so that a rank that lost its processor does not hold the others
// up. Where there are no more of them than ranks, each rank has a share of its own instead, and in
// a reduce-scatter the part that it is to have. What cannot be seen is read and written through the
// kernel, a chunk at a time, so that it is combined while it is in the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "onehost/host_collective.h"
#include "onehost/host_tensors.h"
#include "reduce/combine.h"
#include "reduce/tree_combiner.h"

namespace rueda {

// The share of one of `ranks` ranks. Shares begin on cache lines, as long as tensors do.
[[nodiscard]] ElementRange share_of(std::int64_t count, std::size_t element, int rank, int ranks);

class DirectReduction {
 public:
  // All of these outlive it. What it does is added to `traffic`.
  DirectReduction(HostChannel& channel, const HostPolicy& policy, const HostTensors& tensors,
                  const Combination& combination, const Combiner& combiner,
                  HostCollective::Traffic& traffic);

  // Of the channel's present collective: divides the work. After all have arrived.
  void begin();
  // Combines the next chunk of this rank's.
  [[nodiscard]] Status combine_next();
  [[nodiscard]] bool has_more() const { return has_more_; }

 private:
  // A part of a piece that lies within a chunk.
  struct Part {
    std::size_t piece;
    std::int64_t first;
    std::int64_t count;
  };

  [[nodiscard]] Status combine_chunk(std::int64_t first, std::int64_t count);
  [[nodiscard]] Status combine_part(const Part& part);
  void add_own(const Part& part);
  [[nodiscard]] Status add_inputs(int member, const Exposure& exposure, const Part& part);
  void add_output(int member, const Exposure& exposure, const Part& part);
  void combine(std::int64_t count);
  [[nodiscard]] Status push(std::size_t bytes);
  [[nodiscard]] std::byte* scratch(std::size_t index) const;

  HostChannel& channel_;
  const HostPolicy& policy_;
  const HostTensors& tensors_;
  const Combiner& combiner_;
  HostCollective::Traffic& traffic_;
  std::optional<TreeCombiner> tree_;  // of leaves
  const std::int64_t chunk_;          // elements

  bool has_more_ = false;
  WorkClaims* claims_ = nullptr;  // null: chunks are not claimed but divided beforehand
  std::int64_t own_next_ = 0;     // then: what is left to do of this rank's share
  std::int64_t own_end_ = 0;

  // Of one part.
  std::vector<std::byte*> targets_;
  std::vector<const std::byte*> sources_;  // by member
  std::vector<std::size_t> order_;         // of leaves: which of them come one after the other
  std::vector<const std::byte*> ordered_;
  struct Push {
    int host_rank;
    std::uint64_t where;
  };
  std::vector<Push> pushes_;
};

}  // namespace rueda
