// Lets one thread enter and leave something that another thread may close for good. At least one of
// them learns that nobody is or will be inside: the closer in close(), or the visitor when it
// leaves or next tries to enter.
//
// Each writes one word and then reads the other's. That needs a fence on both sides, unless the
// closer can make the visitor's processor fence; visits then need none.
#pragma once

#include <atomic>

#include "onehost/wake.h"

namespace rueda {

class VisitGate {
 public:
  // `fences_for_others`: whether the closing thread makes the visitor fence.
  explicit VisitGate(bool fences_for_others = can_fence_for_others())
      : fences_for_others_(fences_for_others) {}

  // --- For the visitor
  // False: it is closed, and nobody is inside. If true, leave() must follow.
  [[nodiscard]] bool enter();
  // Whether it was closed meanwhile, so that this was the last visit.
  [[nodiscard]] bool leave();

  // --- For another thread
  // Admits nobody from now on. Returns whether nobody is inside; if false, leave() tells the
  // visitor.
  [[nodiscard]] bool close();

 private:
  void set_inside(bool inside);
  [[nodiscard]] bool is_closed() const;

  const bool fences_for_others_;
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_closed_{false};
};

// Inline, since a visit may take only nanoseconds.

inline bool VisitGate::enter() {
  set_inside(true);
  return !is_closed() || !leave();
}

inline bool VisitGate::leave() {
  set_inside(false);
  return is_closed();
}

// With branches, since an order that is only known at run time becomes the strongest one.
inline void VisitGate::set_inside(bool inside) {
  if (fences_for_others_) {
    is_inside_.store(inside, std::memory_order_release);
  } else {
    is_inside_.store(inside, std::memory_order_seq_cst);
  }
}

// If closers make this thread fence, ordering its own instructions is enough.
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
