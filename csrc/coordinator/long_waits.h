// How many threads of the application have been waiting for long, in a call that the epoch does not
// know of, for something that other ranks do. Meanwhile the epoch looks for silent ranks.
#pragma once

#include <atomic>

namespace rueda {

class LongWaits {
 public:
  // Any thread.
  [[nodiscard]] bool any() const { return count_.load(std::memory_order_relaxed) > 0; }

  // One of them, while this object exists.
  class Wait {
   public:
    explicit Wait(LongWaits& waits) : waits_(waits) { waits_.count_.fetch_add(1); }
    ~Wait() { waits_.count_.fetch_sub(1); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    LongWaits& waits_;
  };

 private:
  std::atomic<int> count_{0};
};

}  // namespace rueda
