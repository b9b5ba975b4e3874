// Sleeping on a WakeWord.
#pragma once

#include <cstdint>
#include <optional>

#include "core/futex.h"
#include "onehost/host_memory.h"

namespace rueda {

// Announces, while it lives, that this thread is about to sleep. Look a last time for something to
// do after having made it: whoever adds something later wakes.
class Sleeper {
 public:
  explicit Sleeper(WakeWord& word);
  ~Sleeper();
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  // Until wake(), which may have come since the announcement, or the deadline. May return `changed`
  // without cause.
  FutexWake sleep(std::optional<Time> deadline);

 private:
  WakeWord& word_;
  std::uint32_t seen_;
};

}  // namespace rueda
