#include "plan/heartbeat.h"

#include <algorithm>
#include <utility>

namespace rueda {

Heartbeat::Heartbeat(std::vector<int> ranks, Duration patience)
    : ranks_(std::move(ranks)), patience_(patience) {}

Heartbeat::Look Heartbeat::look(Time now, bool waiting) {
  if (!waiting || patience_ <= Duration() || ranks_.empty()) {
    heard_.clear();
    next_question_.reset();
    return {};
  }
  const bool was_stopped = next_question_ && now - *next_question_ > patience_ / 2;
  if (!next_question_ || was_stopped) {
    for (const int rank : ranks_) heard_[rank] = now;
    next_question_ = now + pause();
    return {was_stopped, std::nullopt};
  }
  Look look;
  for (const auto& [rank, time] : heard_) {
    if (now - time >= patience_ && !look.silent) look.silent = rank;
  }
  look.ask = now >= *next_question_;
  if (look.ask) next_question_ = now + pause();
  return look;
}

void Heartbeat::hear(int rank, Time now) {
  if (const auto found = heard_.find(rank); found != heard_.end()) found->second = now;
}

std::optional<Time> Heartbeat::next_look() const {
  if (!next_question_) return std::nullopt;
  Time next = *next_question_;
  for (const auto& item : heard_) next = std::min(next, item.second + patience_);
  return next;
}

}  // namespace rueda
