#include "core/limited_log.h"

#include <utility>

namespace rueda {

std::optional<std::int64_t> RateLimit::admit(Time now) {
  if (last_ && now - *last_ < std::chrono::seconds(1)) {
    ++left_out_;
    return std::nullopt;
  }
  last_ = now;
  return std::exchange(left_out_, 0);
}

void LimitedLog::write(std::string_view message) {
  if (!is_logged(level_)) return;
  const std::lock_guard lock(mutex_);
  const auto left_out = limit_.admit(Clock::now());
  if (!left_out) return;
  const std::string more = *left_out > 0 ? str(" (", *left_out, " more like this before)") : "";
  log(level_, message, more);
}

}  // namespace rueda
