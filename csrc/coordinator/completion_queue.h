// Where threads learn that handles have completed, in the order of completion.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "coordinator/handle_state.h"
#include "core/clock.h"

namespace rueda {

class CompletionInbox {
 public:
  void put(std::uint64_t token);
  // Tokens that have come since the last call; none after the deadline, nudge() or close(). If
  // several threads wait, one of them gets the tokens.
  [[nodiscard]] std::vector<std::uint64_t> take(std::optional<Time> deadline);
  // Ends one take(): the next one, if nobody waits.
  void nudge();
  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(); }

 private:
  std::mutex mutex_;
  std::vector<std::uint64_t> tokens_;
  bool nudged_ = false;
  std::atomic<std::uint32_t> changes_{0};  // waited on
  std::atomic<bool> closed_{false};
};

}  // namespace rueda
