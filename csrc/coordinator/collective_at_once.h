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
  // Nothing for what is none: a barrier, or one of a group. `agreed`: of a plan, with all that it
  // exchanges sent along; outlives the result.
  // `room`: bytes that each rank can send along.
  [[nodiscard]] static std::optional<CollectiveAtOnce> of(const Response& agreed,
                                                          const ProcessSetMembers& members,
                                                          std::size_t room);

  // Whether the call is what was agreed on, and has memory for all of its result.
  [[nodiscard]] bool fits(const RepeatedCall& call) const;
  // What this rank sends along, of a call that fits: so many bytes, and they themselves.
  [[nodiscard]] std::size_t contributed(const RepeatedCall& call) const;
  void contribute(const RepeatedCall& call, std::byte* target) const;
  // Into the call's output, from what each rank has sent along; `sent` is changed. False: it is
  // not of that length, as only the rows of an alltoall can tell, and nothing has happened. What
  // this rank has sent is on its way to the others' caches: it is read from the input if it can be.
  [[nodiscard]] bool finish(const RepeatedCall& call, std::span<const std::byte*> sent) const;
  // After that.
  void count(const RepeatedCall& call, Metrics& metrics) const;
  // As this rank would submit it.
  [[nodiscard]] Request request_of(const RepeatedCall& call) const;
  // Of an alltoall: how many rows go to each rank.
  [[nodiscard]] std::vector<std::int64_t> rows_of(const RepeatedCall& call) const;

 private:
  CollectiveAtOnce(const Response& agreed, const ProcessSetMembers& members, std::size_t room);

  [[nodiscard]] const Request& agreed() const { return agreed_->request; }
  [[nodiscard]] std::size_t input_bytes(const RepeatedCall& call) const;
  [[nodiscard]] bool fits_alltoall(const RepeatedCall& call) const;
  [[nodiscard]] bool finish_alltoall(const RepeatedCall& call,
                                     std::span<const std::byte* const> sent) const;

  const Response* agreed_;
  int rank_;
  int size_;
  std::size_t room_;
  int root_ = -1;                      // of the world; of a broadcast
  Shape shape_;                        // of this rank's input; alltoall: but for the first extent
  std::size_t input_ = 0;              // bytes; not of an alltoall
  std::size_t contributed_ = 0;        // bytes
  std::vector<std::int64_t> lengths_;  // by rank; allgather: bytes, reduce-scatter: elements
  std::size_t result_ = 0;             // bytes
  std::size_t before_ = 0;             // bytes of the input ahead of this rank's; reduce-scatter
  std::optional<Combiner> combine_;    // of reductions
};

}  // namespace rueda
