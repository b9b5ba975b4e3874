// Executes a RingPlan over a transport.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "backend/backend.h"
#include "plan/ring_plan.h"
#include "plan/ring_progress.h"

namespace rueda {

// Walks through the plan's hops: receives are posted a few hops ahead, and each received chunk is
// reduced and passed on while later chunks are still on the wire. One element is `element_size`
// bytes.
class RingOperation : public Operation {
 public:
  // `reduction` is null for plans that only gather.
  RingOperation(const Lane& lane, RingPlan plan, std::byte* data, std::size_t element_size,
                const Reduction* reduction);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  struct Pending {
    Hop hop;
    Ticket ticket;  // null for an empty chunk, which is not sent
  };

  [[nodiscard]] std::byte* at(const Segment& segment) const {
    return data_ + static_cast<std::size_t>(segment.offset) * element_size_;
  }
  [[nodiscard]] std::size_t bytes(const Segment& segment) const {
    return static_cast<std::size_t>(segment.count) * element_size_;
  }
  [[nodiscard]] std::byte* staging(std::int64_t index);
  bool post_receives();
  bool take_receives();
  bool post_sends();
  bool take_sends();
  void finish_reduced(const Segment& segment);
  void fail(const Status& status);

  Lane lane_;
  RingPlan plan_;
  std::byte* data_;
  std::size_t element_size_;
  bool reduces_;
  Reduction reduction_;

  RingProgress progress_;
  std::deque<Pending> receiving_;
  std::deque<Pending> sending_;
  std::vector<std::vector<std::byte>> staging_;
  bool done_ = false;
  Status status_;
};

}  // namespace rueda
