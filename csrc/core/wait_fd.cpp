#include "core/wait_fd.h"

#include <poll.h>

#include <algorithm>
#include <chrono>

#include "core/interruption.h"

namespace rueda {

namespace {

// Instead of an unlimited poll(): a signal just before the sleep does not end it.
constexpr std::chrono::milliseconds longest{60'000};

bool wait_for(int fd, short events, Time deadline) {
  using std::chrono::milliseconds;
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const milliseconds most =
        is_interruptible() ? std::chrono::ceil<milliseconds>(pause_between_looks()) : longest;
    const auto bounded = std::clamp(left, milliseconds(0), most);
    pollfd entry{fd, events, 0};
    const int found = ::poll(&entry, 1, static_cast<int>(bounded.count()));
    if (found > 0) return true;
    look_for_interruption();
    if (found < 0 || bounded == left || !is_interruptible()) return false;
  }
}

}  // namespace

bool wait_readable(int fd, Time deadline) {
  return wait_for(fd, POLLIN, deadline);
}
bool wait_writable(int fd, Time deadline) {
  return wait_for(fd, POLLOUT, deadline);
}

bool becomes_readable(int fd, Time deadline) {
  while (!wait_readable(fd, deadline)) {
    if (Clock::now() >= deadline) return false;
  }
  return true;
}
bool becomes_writable(int fd, Time deadline) {
  while (!wait_writable(fd, deadline)) {
    if (Clock::now() >= deadline) return false;
  }
  return true;
}

}  // namespace rueda
