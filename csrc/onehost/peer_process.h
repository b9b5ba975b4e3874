// The process of another rank: whether it has ended, and its end.
#pragma once

#include "core/unique_fd.h"

namespace rueda {

class PeerProcess {
 public:
  // A descriptor of the calling process that tells others of its end; empty where the kernel (older
  // than 5.3) or a filter does not give one.
  [[nodiscard]] static UniqueFd open_own();

  PeerProcess() = default;
  // `fd` is the process's open_own(), or empty: then it is looked up by its identifier, which finds
  // no zombies and may be reused.
  PeerProcess(int process, UniqueFd fd);

  [[nodiscard]] bool has_ended() const;
  // Under which this process sees it; -1 where it does not, or is it itself.
  [[nodiscard]] int identifier() const;
  // Ends it, as SIGKILL does, also where it is stopped; false where it cannot be told for sure from
  // another process.
  bool kill() const;

 private:
  int process_ = -1;
  UniqueFd fd_;
  bool is_visible_ = false;  // under its identifier, while it surely lived
};

}  // namespace rueda
