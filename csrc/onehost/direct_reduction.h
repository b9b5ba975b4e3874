// Reduces tensors that all ranks of a host can access: the rank that takes a chunk combines it
// straight from all ranks' tensors and writes the result straight into all of them.
//
// Chunks are claimed one by one, so that a rank which lost its processor does not delay the others.
// If there are no more chunks than ranks, each rank gets a fixed share instead; in a
// reduce-scatter, that is its own part. Memory that is not mapped here is read and written through
// the kernel, a chunk at a time, so that it is combined while in cache.
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

// The share of `rank` among `ranks` ranks. Shares begin at cache lines if the tensors do.
[[nodiscard]] ElementRange share_of(std::int64_t count, std::size_t element, int rank, int ranks);

class DirectReduction {
 public:
  // All of these must outlive it. Adds what it does to `traffic`.
  DirectReduction(HostChannel& channel, const HostPolicy& policy, const HostTensors& tensors,
                  const Combination& combination, const Combiner& combiner,
                  HostCollective::Traffic& traffic);

  // Divides the work of the channel's current collective. Call once all have arrived.
  void begin();
  // Combines this rank's next chunk.
  [[nodiscard]] Status combine_next();
  [[nodiscard]] bool has_more() const { return has_more_; }

 private:
  // The part of a piece within a chunk.
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
  std::optional<TreeCombiner> tree_;  // for leaves
  const std::int64_t chunk_;          // elements

  bool has_more_ = false;
  WorkClaims* claims_ = nullptr;  // null: chunks are assigned, not claimed
  std::int64_t own_next_ = 0;     // if so, what remains of this rank's share
  std::int64_t own_end_ = 0;

  // For one part.
  std::vector<std::byte*> targets_;
  std::vector<const std::byte*> sources_;  // by member
  std::vector<std::size_t> order_;         // for leaves: their order
  std::vector<const std::byte*> ordered_;
  struct Push {
    int host_rank;
    std::uint64_t where;
  };
  std::vector<Push> pushes_;
};

}  // namespace rueda
