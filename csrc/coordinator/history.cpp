#include "coordinator/history.h"

#include <utility>

#include "core/fork.h"

namespace rueda {

namespace {

void add(std::map<std::string, std::int64_t>& sums, const Metrics& metrics) {
  for (const auto& [name, value] : metrics.values()) sums[name] += value;
}

}  // namespace

History::Chapter::Chapter(std::shared_ptr<History> history, const Metrics& metrics)
    : history_(std::move(history)), metrics_(metrics), generation_(fork_generation()) {
  const std::lock_guard lock(history_->mutex_);
  history_->open_.insert(&metrics_);
}

History::Chapter::~Chapter() {
  // In a forked child a thread that it does not have may hold the mutex for ever, and nobody asks
  // for the counters.
  if (generation_ != fork_generation()) return;
  const std::lock_guard lock(history_->mutex_);
  history_->open_.erase(&metrics_);
  add(history_->ended_, metrics_);
}

std::map<std::string, std::int64_t> History::values() const {
  const std::lock_guard lock(mutex_);
  auto sums = ended_;
  for (const Metrics* const metrics : open_) add(sums, *metrics);
  return sums;
}

}  // namespace rueda
