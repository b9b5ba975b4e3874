#include "coordinator/completion_queue.h"

#include "rueda/rueda.h"

namespace rueda {

CompletionQueue::CompletionQueue() : inbox_(std::make_shared<CompletionInbox>()) {}

void CompletionQueue::watch(const Handle& handle, std::uint64_t token) {
  if (!handle.valid()) throw InvalidArgumentError("this handle belongs to no operation");
  if (!handle.state()->watch(inbox_, token)) {
    throw InvalidArgumentError("the handle is already watched");
  }
}

std::vector<std::uint64_t> CompletionQueue::wait(std::chrono::nanoseconds timeout) {
  const Time now = Clock::now();
  const bool ever = timeout >= Time::max() - now;
  return inbox_->take(ever ? std::nullopt : std::optional<Time>(now + timeout));
}

void CompletionQueue::nudge() {
  inbox_->nudge();
}

bool CompletionQueue::is_closed() const {
  return inbox_->is_closed();
}

void CompletionQueue::close() {
  inbox_->close();
}

}  // namespace rueda
