#include "plan/heartbeat.h"

#include <utility>

namespace rueda {

Heartbeat::Heartbeat(std::vector<int> ranks, Duration patience)
    : ranks_(std::move(ranks)), patience_(patience) {}

Heartbeat::Look Heartbeat::look(Time now, bool waiting) {
  if (!waiting || patience_ <= Duration()) {
    asked_.clear();
    next_.reset();
    return {};
  }
  if (!next_) next_ = now + pause();
  if (now < *next_) return {};
  if (now - *next_ > patience_ / 2) asked_.clear();
  next_ = now + pause();
  Look look;
  for (const int rank : ranks_) {
    const auto [since, is_new] = asked_.try_emplace(rank, now);
    if (is_new) {
      look.ask.push_back(rank);
    } else if (now - since->second >= patience_ && !look.silent) {
      look.silent = rank;
    }
  }
  return look;
}

void Heartbeat::hear(int rank) {
  asked_.erase(rank);
}

std::optional<Time> Heartbeat::next_look() const {
  return next_;
}

}  // namespace rueda
