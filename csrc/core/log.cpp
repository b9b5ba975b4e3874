#include "core/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace rueda {

namespace {

std::atomic<LogLevel> threshold{LogLevel::warning};
std::atomic<int> log_rank{-1};

constexpr std::array<std::string_view, 6> level_names{"trace",   "debug", "info",
                                                      "warning", "error", "off"};

// How long a line waits if standard error is non-blocking and nobody reads it.
constexpr int write_timeout_ms = 1000;

void write_fully(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      if (::poll(&writable, 1, write_timeout_ms) == 0) return;
    } else if (errno != EINTR) {
      return;  // there is nowhere to report it
    }
  }
}

}  // namespace

LogLevel log_level_of(std::string_view name) {
  const auto found = std::find(level_names.begin(), level_names.end(), name);
  if (found == level_names.end()) return LogLevel::warning;
  return static_cast<LogLevel>(found - level_names.begin());
}

void set_log_level(LogLevel level) {
  threshold = level;
}
void set_log_rank(int rank) {
  log_rank = rank;
}
bool is_logged(LogLevel level) {
  return level >= threshold.load(std::memory_order_relaxed);
}

void write_log(LogLevel level, std::string_view message) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 32> stamp{};
  std::strftime(stamp.data(), stamp.size(), "%H:%M:%S", &local);
  const int rank = log_rank;
  const std::string line =
      str("rueda ", stamp.data(), rank >= 0 ? str(" [", rank, "]") : std::string(), " ",
          level_names[static_cast<std::size_t>(level)], ": ", message, "\n");
  // One write per line, so that lines of several ranks on one terminal do not interleave.
  write_fully(STDERR_FILENO, line);
}

}  // namespace rueda
