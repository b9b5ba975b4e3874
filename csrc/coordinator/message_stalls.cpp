#include "coordinator/message_stalls.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "core/earlier.h"
#include "core/strings.h"

namespace rueda {

void MessageStalls::begin(WaitingMessage& message) {
  if (patience_ <= Duration::zero() || message.set_id < 0 || message.may_wait_long) return;
  message.since = Clock::now();
  next_look_ = earlier(next_look_, next_report(message));
}

Time MessageStalls::next_report(const WaitingMessage& message) const {
  return message.since + seconds(std::ldexp(to_seconds(patience_), message.reports));
}

void MessageStalls::look(Time now, std::span<WaitingMessage* const> waiting) {
  next_look_.reset();
  std::map<int, std::vector<const WaitingMessage*>> due;  // by peer
  for (WaitingMessage* message : waiting) {
    if (message->since == Time{}) continue;
    if (now >= next_report(*message)) {
      due[message->peer].push_back(message);
      do {
        ++message->reports;
      } while (now >= next_report(*message));  // this process may have been stopped
    }
    next_look_ = earlier(next_look_, next_report(*message));
  }
  for (const auto& [peer, messages] : due) {
    const auto oldest = std::min_element(
        messages.begin(), messages.end(),
        [](const auto* left, const auto* right) { return left->since < right->since; });
    Report report{peer, describe(**oldest, messages.size() - 1, now), now};
    if (peer >= 0 && peer != rank_) {
      report.end = inquiry_.begin(std::array{peer}, now).value_or(now);
    }
    reports_.push_back(std::move(report));
  }
  for (const int peer : inquiry_.take_questions()) actions_.ask(peer);
  send_reports(now);
}

std::string MessageStalls::describe(const WaitingMessage& message, std::size_t others,
                                    Time now) const {
  const std::string peer = message.peer < 0 ? "any rank" : str("rank ", message.peer);
  const std::string own = str("rank ", rank_);
  const double waited = std::round(to_seconds(now - message.since) * 10) / 10;
  std::string text = str("a message of ", message.count, " x ", name_of(message.dtype), " from ",
                         message.is_send ? own : peer, " to ", message.is_send ? peer : own,
                         " with tag ", message.tag);
  if (message.set_id > 0) text += str(" in process set ", message.set_id);
  text += str(" has waited for ", waited, " s: ");
  if (message.is_send) {
    text += str(own, " sends it, ", peer, " has not received it");
  } else if (message.peer >= 0) {
    text += str(own, " receives it, ", peer, " has not sent it");
  } else {
    text += str(own, " receives it, no rank has sent it");
  }
  if (others > 0) text += str(" (and ", others, " more)");
  return text;
}

void MessageStalls::hear(int peer, std::string place, Time now) {
  inquiry_.hear(peer, std::move(place), now);
  for (Report& report : reports_) {
    if (report.peer == peer) report.end = now;
  }
  send_reports(now);
}

void MessageStalls::send_reports(Time now) {
  for (const Report& report : std::exchange(reports_, {})) {
    if (now < report.end) {
      next_look_ = earlier(next_look_, report.end);
      reports_.push_back(report);
      continue;
    }
    const auto describe = [](const std::vector<int>& ranks) { return str("rank ", ranks.front()); };
    // Empty for those that look() has not asked.
    actions_.warn(report.text + inquiry_.report(std::array{report.peer}, now, describe));
  }
}

}  // namespace rueda
