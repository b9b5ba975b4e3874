// For messages that others can trigger without limit: at most one line per second, with the number
// of omitted lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "core/clock.h"
#include "core/log.h"

namespace rueda {

// Lets one message through per second.
class RateLimit {
 public:
  // How many were omitted before this one; empty if this one is to be omitted, too.
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
