// Lets the caller of something that blocks for long end it early, as Python does on Ctrl-C.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "core/clock.h"

namespace rueda {

// While it lives, waits of this thread call `look` after each `pause`. What `look` throws ends the
// wait and whatever waits; from then on nothing is called any more, so that cleaning up may wait.
class Interruptible {
 public:
  explicit Interruptible(std::function<void()> look,
                         Duration pause = std::chrono::milliseconds(200));
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

// Whether a wait of this thread should look now and then, and the look itself.
[[nodiscard]] bool is_interruptible();
void look_for_interruption();
// How long to wait between two looks.
[[nodiscard]] Duration pause_between_looks();

}  // namespace rueda
