#include "plan/heartbeat.h"

#include <algorithm>
#include <utility>

namespace rueda {

Heartbeat::Heartbeat(std::vector<int> ranks, Duration timeout)
    : ranks_(std::move(ranks)), timeout_(timeout) {}

Heartbeat::Look Heartbeat::look(Time now, bool waiting) {
  if (!waiting || timeout_ <= Duration() || ranks_.empty()) {
    silences_.clear();
    next_question_.reset();
    return {};
  }
  const bool was_stopped = next_question_ && now - *next_question_ > timeout_ / 2;
  const Duration late = next_question_ ? lateness(now, *next_look(), last_look_) : Duration();
  last_look_ = now;
  if (!next_question_ || was_stopped) {
    for (const int rank : ranks_) silences_[rank] = Silence(now);
    next_question_ = now + pause();
    return {was_stopped, std::nullopt};
  }
  Look look;
  for (auto& [rank, silence] : silences_) {
    silence.miss(late);
    if (now >= silence.end(timeout_) && !look.silent) look.silent = rank;
  }
  look.ask = now >= *next_question_;
  if (look.ask) next_question_ = now + pause();
  return look;
}

void Heartbeat::hear(int rank, Time now) {
  if (const auto found = silences_.find(rank); found != silences_.end()) found->second.hear(now);
}

bool Heartbeat::is_silent(int rank, Time now) const {
  const auto found = silences_.find(rank);
  return found != silences_.end() && now >= found->second.end(timeout_);
}

bool Heartbeat::excuse(int rank, Time now) {
  const auto found = silences_.find(rank);
  return found != silences_.end() && found->second.excuse(now, timeout_);
}

std::optional<Time> Heartbeat::next_look() const {
  if (!next_question_) return std::nullopt;
  Time next = *next_question_;
  for (const auto& item : silences_) next = std::min(next, item.second.end(timeout_));
  return next;
}

}  // namespace rueda
