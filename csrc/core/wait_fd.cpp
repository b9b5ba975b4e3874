#include "core/wait_fd.h"

#include <poll.h>

#include <algorithm>
#include <chrono>

namespace rueda {

namespace {

bool wait_for(int fd, short events, Time deadline) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  const auto bounded = std::clamp(left, milliseconds(0), milliseconds(60'000));
  pollfd entry{fd, events, 0};
  return ::poll(&entry, 1, static_cast<int>(bounded.count())) > 0;
}

}  // namespace

bool wait_readable(int fd, Time deadline) {
  return wait_for(fd, POLLIN, deadline);
}
bool wait_writable(int fd, Time deadline) {
  return wait_for(fd, POLLOUT, deadline);
}

}  // namespace rueda
