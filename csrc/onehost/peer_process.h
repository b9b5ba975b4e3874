// The process of another rank: whether it has ended, and how to end it.
#pragma once

#include <atomic>

#include "core/clock.h"
#include "core/unique_fd.h"

namespace rueda {

class PeerProcess {
 public:
  // A descriptor of the calling process that reports its end to others; empty if the kernel (before
  // 5.3) or a filter does not provide one.
  [[nodiscard]] static UniqueFd open_own();

  PeerProcess() = default;
  // `fd`: the process's open_own(). If empty, the process is looked up by its id, which does not
  // detect zombies and may be reused. `life_line`: the process's life_line(), a descriptor that is
  // readable once it has ended, or empty.
  PeerProcess(int process, UniqueFd fd, UniqueFd life_line);

  // Whether none of its threads run any more; the kernel may still be tearing it down. Cheap to
  // call in a loop.
  [[nodiscard]] bool has_ended() const;
  // Becomes readable when has_ended() is about to be true; -1 if there is none.
  [[nodiscard]] int life_line() const { return life_line_.get(); }
  // Its id as seen by this process; -1 if it is not visible, or is this process.
  [[nodiscard]] int identifier() const;
  // Kills it as SIGKILL does, even if it is stopped; false if it cannot be identified with
  // certainty.
  bool kill() const;

 private:
  int process_ = -1;
  UniqueFd fd_;
  UniqueFd life_line_;
  mutable std::atomic<Time> next_look_{};  // at its threads
  bool is_visible_ = false;                // under its id, while it was surely alive
};

}  // namespace rueda
