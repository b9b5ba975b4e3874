#include "core/whereabouts.h"

#include <cmath>
#include <utility>

#include "core/strings.h"

namespace rueda {

void Whereabouts::register_guide(std::function<void()> wake, std::string excuse) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
  excuse_ = std::move(excuse);
  answered_ = asked_;
  newest_answer_.clear();
}

void Whereabouts::unregister_guide() {
  register_guide({}, {});
}

std::uint64_t Whereabouts::newest_question() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

void Whereabouts::answer(std::uint64_t question, std::string text) {
  const std::lock_guard lock(mutex_);
  if (question > asked_ || question < answered_) return;
  answered_ = question;
  newest_answer_ = std::move(text);
}

std::optional<std::uint64_t> Whereabouts::ask(Time now) {
  const std::lock_guard lock(mutex_);
  if (!wake_) return std::nullopt;
  if (asked_ == answered_) unanswered_since_ = now;
  ++asked_;
  wake_();
  return asked_;
}

std::optional<std::string> Whereabouts::answer_to(std::uint64_t question) const {
  const std::lock_guard lock(mutex_);
  if (answered_ < question) return std::nullopt;
  return newest_answer_;
}

std::string Whereabouts::excuse(Time now) const {
  const std::lock_guard lock(mutex_);
  const double silent = std::round(to_seconds(now - unanswered_since_) * 10) / 10;
  return str(excuse_, " for ", silent, " s or longer");
}

Whereabouts& whereabouts() {
  static auto* instance = new Whereabouts;  // threads may ask until the process ends
  return *instance;
}

}  // namespace rueda
