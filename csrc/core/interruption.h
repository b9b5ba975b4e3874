// Lets a caller end a long blocking call early, as Python does on Ctrl-C.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "core/clock.h"

namespace rueda {

// While it exists, waits of this thread call `look` after each `pause`. An exception from `look`
// ends the wait and propagates. After that `look` is not called any more, so cleanup may wait.
class Interruptible {
 public:
  explicit Interruptible(std::function<void()> look,
                         Duration pause = std::chrono::milliseconds(200));
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

// Whether a wait of this thread should call `look` now and then, and the call itself.
[[nodiscard]] bool is_interruptible();
void look_for_interruption();
// How long to wait between two calls.
[[nodiscard]] Duration pause_between_looks();

}  // namespace rueda
