// Lets the caller of something that blocks for long end it early, as Python does on Ctrl-C.
#pragma once

#include <functional>
#include <utility>

namespace rueda {

// While it lives, waits of this thread call `look` now and then. What `look` throws ends the wait
// and whatever waits; from then on nothing is called any more, so that cleaning up may wait.
class Interruptible {
 public:
  explicit Interruptible(std::function<void()> look);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

// Whether a wait of this thread should look now and then, and the look itself.
[[nodiscard]] bool is_interruptible();
void look_for_interruption();

}  // namespace rueda
