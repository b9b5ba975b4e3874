// A queue from many threads to one, with a descriptor to sleep on.
#pragma once

#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "core/strings.h"
#include "core/unique_fd.h"

namespace rueda {

// A descriptor that is readable from ring() to silence(). Thread-safe.
class Bell {
 public:
  // Throws std::runtime_error when the process is out of descriptors.
  Bell() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!event_) throw std::runtime_error(str("eventfd: ", std::strerror(errno)));
  }

  [[nodiscard]] int fd() const { return event_.get(); }
  void ring() { ::eventfd_write(event_.get(), 1); }
  void silence() {
    eventfd_t count = 0;
    ::eventfd_read(event_.get(), &count);
  }

 private:
  const UniqueFd event_;
};

template <class Item>
class Mailbox {
 public:
  void push(Item item) {
    const std::lock_guard lock(mutex_);
    if (items_.empty()) bell_.ring();
    items_.push_back(std::move(item));
  }

  [[nodiscard]] std::deque<Item> take_all() {
    const std::lock_guard lock(mutex_);
    if (!items_.empty()) bell_.silence();
    return std::exchange(items_, {});
  }

  // Readable while there is something inside.
  [[nodiscard]] int fd() const { return bell_.fd(); }

 private:
  Bell bell_;
  std::mutex mutex_;
  std::deque<Item> items_;
};

}  // namespace rueda
