// A small collective of one tensor that was agreed on, for a caller who waits and to whom all that
// the ranks contribute has come: how much that is, and what is made of it. See RoundAtOnce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/metrics.h"
#include "coordinator/process_sets.h"
#include "coordinator/repeated_call.h"
#include "plan/response.h"
#include "reduce/combine.h"

namespace rueda {

class CollectiveAtOnce {
 public:
  // Nothing for what is none: not an allreduce, allgather, broadcast or reduce-scatter, or one of a
  // group. `agreed`: of a plan, with all that it exchanges sent along; outlives the result.
  [[nodiscard]] static std::optional<CollectiveAtOnce> of(const Response& agreed,
                                                          const ProcessSetMembers& members);

  // Whether the call is what was agreed on, and has memory for all of its result.
  [[nodiscard]] bool fits(const RepeatedCall& call) const;
  // Bytes that this rank contributes, from the beginning of the call's input.
  [[nodiscard]] std::size_t contributed() const { return contributed_; }
  // Into the call's output, from what each rank has sent along; `sent` is changed. What this rank
  // has sent is on its way to the others' caches, and is read from the input where that is still
  // there.
  void finish(const RepeatedCall& call, std::span<const std::byte*> sent) const;
  void count_in(Metrics& metrics) const;
  // As this rank would submit it.
  [[nodiscard]] Request request_of(const RepeatedCall& call) const;

 private:
  CollectiveAtOnce(const Response& agreed, const ProcessSetMembers& members);

  [[nodiscard]] const Request& agreed() const { return agreed_->request; }

  const Response* agreed_;
  int rank_;
  int root_ = -1;                      // of the world; of a broadcast
  Shape shape_;                        // of this rank's input
  std::size_t contributed_ = 0;        // bytes
  std::vector<std::int64_t> lengths_;  // by rank; allgather: bytes, reduce-scatter: elements
  std::size_t result_ = 0;             // bytes
  std::size_t before_ = 0;             // bytes of the input ahead of this rank's; reduce-scatter
  std::optional<Combiner> combine_;    // of reductions
};

}  // namespace rueda
