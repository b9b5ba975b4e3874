#include "core/wait_readable.h"

#include <poll.h>

#include <algorithm>
#include <chrono>

namespace rueda {

bool wait_readable(int fd, Time deadline) {
  using std::chrono::milliseconds;
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  const auto bounded = std::clamp(left, milliseconds(0), milliseconds(60'000));
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(bounded.count())) > 0;
}

}  // namespace rueda
