// An allreduce of partial sums of leaves (include/rueda/leaves.h), over messages.
//
// The elements of a batch are divided evenly among the ranks. Each rank sends its partial sums of a
// segment straight to the segment's owner. The owner combines those of all ranks along the tree and
// sends the result to all. With n bytes of elements, a rank with k partial sums sends (k+1)(P-1)/P
// * n: as much as a ring does when each rank has one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"
#include "reduce/tree_combiner.h"

namespace rueda {

// Works chunk by chunk, with several rounds in flight at once. Round t moves chunk t of every
// owner.
class LeafAllreduce final : public Operation {
 public:
  // Requires reduction.leaves. Throws std::bad_alloc.
  LeafAllreduce(const Lane& lane, const Reduction& reduction, std::vector<Piece> pieces);

  // Combines at most one chunk per call, so that the transport makes progress in between.
  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  // A range of the batch's elements, as if its pieces were contiguous.
  struct Range {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  struct Run {
    const Piece* piece;
    std::int64_t first;  // within the piece
    std::int64_t count;
  };
  struct Exchange {
    int rank = 0;  // within the set
    Ticket contribution_sent;
    Ticket contribution_taken;
    Ticket result_sent;
    Ticket result_taken;
    AlignedBytes contribution;  // the rank's partial sums of this rank's chunk
  };
  struct Round {
    std::int64_t number = 0;
    std::vector<Exchange> exchanges;  // starts with the next rank
    bool is_combined = false;
  };

  [[nodiscard]] Range chunk_of(int owner, std::int64_t number) const;
  [[nodiscard]] std::vector<Run> runs_of(Range range) const;
  [[nodiscard]] int partials_of(int rank) const { return plan_->partials_of(rank); }
  [[nodiscard]] std::size_t bytes_of(std::int64_t count) const {
    return static_cast<std::size_t>(count) * element_;
  }

  void begin_round();
  void send_contribution(Exchange& exchange, Range range);
  void take_contribution(Exchange& exchange, Range range);
  bool take_result(Exchange& exchange, std::int64_t number);
  bool advance(Round& round);
  [[nodiscard]] bool may_combine(const Round& round) const;
  void combine(Round& round);
  [[nodiscard]] const std::byte* input_of(const Round& round, const LeafPlan::Source& source,
                                          const Run& run, std::int64_t before) const;
  void send_results(Round& round, const std::vector<Run>& runs);
  [[nodiscard]] Ticket send(int rank, std::uint64_t part, const std::vector<ConstBytes>& spans);
  [[nodiscard]] Ticket take(int rank, std::uint64_t part, const std::vector<MutableBytes>& spans);
  // Whether a transfer has ended, or there was none. Its error ends the operation.
  bool is_over(const Ticket& ticket);
  bool is_over(const Round& round);

  Lane lane_;
  std::shared_ptr<const LeafPlan> plan_;
  std::vector<Piece> pieces_;
  std::size_t element_;
  TreeCombiner tree_;
  std::int64_t chunk_;       // elements
  std::int64_t count_ = 0;   // of the batch
  std::int64_t chunks_ = 0;  // of the owner with the most
  std::int64_t begun_ = 0;
  std::vector<std::int64_t> results_taken_;  // by rank: rounds whose result was requested
  std::deque<Round> rounds_;                 // in flight
  bool done_ = false;
  Status status_;
};

// For partial sums that other ranks cannot reach: packs them, with room for the result, into a
// buffer of `pool` as one piece and passes that to `start`. Throws std::bad_alloc.
[[nodiscard]] std::unique_ptr<Operation> packed_leaves(
    BufferPool& pool, const Lane& lane, const Reduction& reduction,
    const std::vector<Piece>& pieces,
    const std::function<std::unique_ptr<Operation>(const Piece& all)>& start);

}  // namespace rueda
