#include "backend/hierarchical_allreduce.h"

#include <utility>
#include <vector>

#include "backend/contribute.h"
#include "backend/recursive_operation.h"
#include "backend/ring_operation.h"
#include "backend/sequence.h"
#include "backend/stages.h"
#include "backend/tree_operation.h"

namespace rueda {

namespace {

class Allreduce {
 public:
  Allreduce(const Lane& lane, const HostPolicy& policy, const Reduction& reduction,
            const Piece& piece, Algorithm algorithm)
      : lane_(lane),
        policy_(policy),
        reduction_(reduction),
        piece_(piece),
        element_(size_of(reduction.dtype)),
        rank_(lane.hosts->rank()),
        plan_(*lane.hosts, algorithm, piece.count, element_, lane.chunk_bytes),
        before_(line_up(lane.before_links, plan_.parts())),
        after_(line_up(lane.after_links, plan_.parts())) {}

  [[nodiscard]] std::int64_t parts() const { return plan_.parts(); }

  // Leaves each slice with the member that carries it: this host's combined contribution.
  [[nodiscard]] std::unique_ptr<Operation> reduce(std::int64_t part) const {
    if (lane_.before_links == nullptr) {
      const Segment whole = plan_.part(part);
      contribute(output(whole.offset), input(whole.offset), whole.count, reduction_);
      return nullptr;
    }
    return reduce_slices(lane_, policy_, reduction_, piece_, slices_of(part),
                         before_ + static_cast<std::uint64_t>(part));
  }

  [[nodiscard]] std::unique_ptr<Operation> cross(std::int64_t part) const {
    if (rank_ >= plan_.slices()) return nullptr;
    Lane across = lane_of_part(lane_across(lane_, rank_), part);
    across.chunk_bytes = plan_.chunk_bytes();
    const Segment own = plan_.slice(part, rank_);
    if (plan_.algorithm() == Algorithm::tree) {
      return std::make_unique<TreeOperation>(across, static_cast<int>(part % 2), reduction_,
                                             output(own.offset), own.count,
                                             chunk_elements(across, element_));
    }
    if (plan_.algorithm() == Algorithm::doubling || plan_.algorithm() == Algorithm::halving) {
      const auto plan = plan_.algorithm() == Algorithm::doubling ? doubling_plan : halving_plan;
      return std::make_unique<RecursiveOperation>(across, reduction_, output(own.offset),
                                                  plan(across.rank, across.size(), own.count));
    }
    RingPlan ring = RingPlan::allreduce(across.rank, across.size(), own.count,
                                        chunk_elements(across, element_));
    return std::make_unique<RingOperation>(across, std::move(ring), output(own.offset), element_,
                                           &reduction_);
  }

  [[nodiscard]] std::unique_ptr<Operation> gather(std::int64_t part) const {
    if (lane_.after_links == nullptr) return nullptr;
    return gather_slices(lane_, policy_, piece_.output, element_, slices_of(part),
                         after_ + static_cast<std::uint64_t>(part));
  }

 private:
  [[nodiscard]] std::vector<Segment> slices_of(std::int64_t part) const {
    std::vector<Segment> slices;
    for (int index = 0; index < plan_.slices(); ++index) slices.push_back(plan_.slice(part, index));
    return slices;
  }
  [[nodiscard]] std::size_t bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count) * element_;
  }
  [[nodiscard]] const std::byte* input(std::int64_t offset) const {
    return piece_.input == nullptr ? nullptr : piece_.input + bytes(offset);
  }
  [[nodiscard]] std::byte* output(std::int64_t offset) const {
    return piece_.output + bytes(offset);
  }

  const Lane lane_;
  const HostPolicy policy_;
  const Reduction reduction_;
  const Piece piece_;
  const std::size_t element_;
  const int rank_;  // among this host's members
  const HierarchyPlan plan_;
  const std::uint64_t before_;  // first tickets in the channels' queues
  const std::uint64_t after_;
};

}  // namespace

std::unique_ptr<Operation> hierarchical_allreduce(const Lane& lane, const HostPolicy& policy,
                                                  const Reduction& reduction, const Piece& piece,
                                                  Algorithm algorithm) {
  const auto whole = std::make_shared<const Allreduce>(lane, policy, reduction, piece, algorithm);
  const auto steps = [whole](std::int64_t part) -> std::vector<Sequence::Step> {
    return {[whole, part] { return whole->reduce(part); },
            [whole, part] { return whole->cross(part); },
            [whole, part] { return whole->gather(part); }};
  };
  return std::make_unique<Pipeline>(whole->parts(), parts_under_way, steps, 1);
}

}  // namespace rueda
