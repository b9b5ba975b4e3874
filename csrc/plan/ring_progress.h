// How far one rank has come in a RingPlan, and which hop it may post next.
//
// Only counts: the caller posts transfers and knows when they complete.
#pragma once

#include <cstdint>

#include "plan/ring_plan.h"

namespace rueda {

class RingProgress {
 public:
  // How many receives are posted ahead: enough to hide the turn-around of one chunk.
  static constexpr std::int64_t window = 4;

  explicit RingProgress(const RingPlan& plan)
      : hops_(plan.hops()), chunks_(plan.chunks()), both_phases_(plan.has_both_phases()) {}

  // Whether the next receive may be posted: there is room in the window, and if the chunk is of the
  // second half and replaces one that this rank sent in the first, that send has completed.
  [[nodiscard]] bool may_post_receive() const {
    return receives_posted_ < hops_ && receives_posted_ < received_ + window &&
           may_overwrite(receives_posted_);
  }
  // Whether the data of the next send has been received.
  [[nodiscard]] bool may_post_send() const {
    return sends_posted_ < hops_ && sends_posted_ < received_ + chunks_;
  }
  [[nodiscard]] bool is_over() const { return received_ == hops_ && sent_ == hops_; }

  // How many there have been: the number of the next hop. Receives and sends complete in order.
  [[nodiscard]] std::int64_t receives_posted() const { return receives_posted_; }
  [[nodiscard]] std::int64_t sends_posted() const { return sends_posted_; }
  [[nodiscard]] std::int64_t received() const { return received_; }
  [[nodiscard]] std::int64_t sent() const { return sent_; }

  void post_receive() { ++receives_posted_; }
  void post_send() { ++sends_posted_; }
  void receive() { ++received_; }
  void finish_send() { ++sent_; }

 private:
  [[nodiscard]] bool may_overwrite(std::int64_t index) const {
    const std::int64_t first_half = hops_ / 2;
    return !both_phases_ || index < first_half || sent_ > index - first_half;
  }

  std::int64_t hops_;
  std::int64_t chunks_;
  bool both_phases_;
  std::int64_t receives_posted_ = 0;
  std::int64_t sends_posted_ = 0;
  std::int64_t received_ = 0;
  std::int64_t sent_ = 0;
};

}  // namespace rueda
