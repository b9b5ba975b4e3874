// The process of another rank: whether it has ended, and its end.
#pragma once

#include <atomic>

#include "core/clock.h"
#include "core/unique_fd.h"

namespace rueda {

class PeerProcess {
 public:
  // A descriptor of the calling process that tells others of its end; empty where the kernel (older
  // than 5.3) or a filter does not give one.
  [[nodiscard]] static UniqueFd open_own();

  PeerProcess() = default;
  // `fd` is the process's open_own(), or empty: then it is looked up by its identifier, which finds
  // no zombies and may be reused. `life_line` is the process's life_line(), or readable once it has
  // ended, or empty.
  PeerProcess(int process, UniqueFd fd, UniqueFd life_line);

  // Whether no thread of it runs any more, though the kernel may still be at taking it down.
  // Whoever asks in a loop costs little.
  [[nodiscard]] bool has_ended() const;
  // Readable when has_ended() is about to be true; -1 where nothing tells.
  [[nodiscard]] int life_line() const { return life_line_.get(); }
  // Under which this process sees it; -1 where it does not, or is it itself.
  [[nodiscard]] int identifier() const;
  // Ends it, as SIGKILL does, also where it is stopped; false where it cannot be told for sure from
  // another process.
  bool kill() const;

 private:
  int process_ = -1;
  UniqueFd fd_;
  UniqueFd life_line_;
  mutable std::atomic<Time> next_look_{};  // at its threads
  bool is_visible_ = false;                // under its identifier, while it surely lived
};

}  // namespace rueda
