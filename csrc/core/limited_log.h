// For messages that others can cause as often as they like: at most one line a second, with the
// number of those left out.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "core/clock.h"
#include "core/log.h"

namespace rueda {

// Lets one through per second.
class RateLimit {
 public:
  // How many were left out before this one; nothing where this one is to be left out, too.
  [[nodiscard]] std::optional<std::int64_t> admit(Time now);

 private:
  std::optional<Time> last_;
  std::int64_t left_out_ = 0;
};

// Thread-safe.
class LimitedLog {
 public:
  explicit LimitedLog(LogLevel level) : level_(level) {}
  void write(std::string_view message);

 private:
  const LogLevel level_;
  std::mutex mutex_;
  RateLimit limit_;
};

}  // namespace rueda
