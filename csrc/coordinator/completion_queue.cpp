#include "coordinator/completion_queue.h"

#include <utility>

#include "core/futex.h"

namespace rueda {

void CompletionInbox::put(std::uint64_t token) {
  {
    const std::lock_guard lock(mutex_);
    tokens_.push_back(token);
  }
  changes_.fetch_add(1);
  futex_wake_one(changes_);
}

std::vector<std::uint64_t> CompletionInbox::take(std::optional<Time> deadline) {
  for (;;) {
    const std::uint32_t seen = changes_.load();
    {
      const std::lock_guard lock(mutex_);
      const bool nudged = std::exchange(nudged_, false);
      if (!tokens_.empty() || nudged || closed_) return std::exchange(tokens_, {});
    }
    if (futex_wait(changes_, seen, deadline) != FutexWake::changed) return {};
  }
}

void CompletionInbox::nudge() {
  {
    const std::lock_guard lock(mutex_);
    nudged_ = true;
  }
  changes_.fetch_add(1);
  futex_wake_one(changes_);
}

void CompletionInbox::close() {
  closed_ = true;
  changes_.fetch_add(1);
  futex_wake_all(changes_);
}

}  // namespace rueda
