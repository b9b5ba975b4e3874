// Lets one thread go in and out of what another thread may close for good: at least one of the two
// learns that nobody is inside any more and nobody will be, the other in close(), or the visitor as
// it leaves or next wants to enter.
//
// Each of them writes one word and then looks at the other's. That takes a fence on both sides,
// unless the one who closes can make the visitor's processor fence: visits then cost none.
#pragma once

#include <atomic>

#include "onehost/wake.h"

namespace rueda {

class VisitGate {
 public:
  // `fences_for_others`: whether whoever closes it makes the visitor fence.
  explicit VisitGate(bool fences_for_others = can_fence_for_others())
      : fences_for_others_(fences_for_others) {}

  // --- By the visitor
  // False: it is closed, and nobody is inside. Otherwise leave() follows.
  [[nodiscard]] bool enter();
  // Whether it has been closed meanwhile, so that this was the last visit.
  [[nodiscard]] bool leave();

  // --- By another thread
  // Lets nobody in any more; whether nobody is inside. Otherwise leave() will tell the visitor.
  [[nodiscard]] bool close();

 private:
  [[nodiscard]] bool is_closed() const;

  const bool fences_for_others_;
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_closed_{false};
};

// In line, as what a visit is for may take nanoseconds.

inline bool VisitGate::enter() {
  is_inside_.store(true,
                   fences_for_others_ ? std::memory_order_relaxed : std::memory_order_seq_cst);
  return !is_closed() || !leave();
}

inline bool VisitGate::leave() {
  is_inside_.store(false,
                   fences_for_others_ ? std::memory_order_release : std::memory_order_seq_cst);
  return is_closed();
}

// Where others make this thread fence, the order of its own instructions is enough.
inline bool VisitGate::is_closed() const {
  if (!fences_for_others_) return is_closed_.load(std::memory_order_seq_cst);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return is_closed_.load(std::memory_order_relaxed);
}

inline bool VisitGate::close() {
  is_closed_.store(true, std::memory_order_seq_cst);
  if (fences_for_others_) fence_for_others();
  return !is_inside_.load(std::memory_order_seq_cst);
}

}  // namespace rueda
