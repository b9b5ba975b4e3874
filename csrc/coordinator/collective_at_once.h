// A small collective of one tensor that was agreed on, for a waiting caller that has received every
// rank's contribution: the size of the contributions, and how the result is made from them. See
// RoundAtOnce.
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
  // Nothing if it does not apply: a barrier, or a member of a group. `agreed`: from a plan whose
  // data is all sent along; must outlive the result. `room`: bytes that each rank can send along.
  [[nodiscard]] static std::optional<CollectiveAtOnce> of(const Response& agreed,
                                                          const ProcessSetMembers& members,
                                                          std::size_t room);

  // Whether the call matches what was agreed on, and has memory for the whole result.
  [[nodiscard]] bool fits(const RepeatedCall& call) const;
  // What this rank sends along for a call that fits: its number of bytes, and the bytes.
  [[nodiscard]] std::size_t contributed(const RepeatedCall& call) const;
  void contribute(const RepeatedCall& call, std::byte* target) const;
  // Writes the call's output from what each rank has sent along; changes `sent`. False: the data
  // has another length, which only the rows of an alltoall reveal, and nothing has happened. This
  // rank's own data is read from the input if possible, since the copy that it sent is on its way
  // to the others' caches.
  [[nodiscard]] bool finish(const RepeatedCall& call, std::span<const std::byte*> sent) const;
  // Counts it, after that.
  void count(const RepeatedCall& call, Metrics& metrics) const;
  // The request as this rank would submit it.
  [[nodiscard]] Request request_of(const RepeatedCall& call) const;
  // For an alltoall: how many rows go to each rank.
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
  int root_ = -1;                      // broadcast: world rank
  Shape shape_;                        // of this rank's input; alltoall: except the first extent
  std::size_t input_ = 0;              // bytes; not for an alltoall
  std::size_t contributed_ = 0;        // bytes
  std::vector<std::int64_t> lengths_;  // by rank; allgather: bytes, reduce-scatter: elements
  std::size_t result_ = 0;             // bytes
  std::size_t before_ = 0;             // reduce-scatter: bytes of the input ahead of this rank's
  std::optional<Combiner> combine_;    // for reductions
};

}  // namespace rueda
