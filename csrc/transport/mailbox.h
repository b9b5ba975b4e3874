// A queue from many threads to one, with a descriptor to sleep on.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "core/strings.h"
#include "core/unique_fd.h"

namespace rueda {

enum class MailboxBell : std::uint8_t {
  whenever_filled,  // the descriptor is readable while there is something inside
  when_armed,       // only if the owner said that it is going to sleep: no system call otherwise
};

template <class Item>
class Mailbox {
 public:
  // Throws std::runtime_error when the process is out of descriptors.
  explicit Mailbox(MailboxBell bell)
      : bell_(bell), event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!event_) throw std::runtime_error(str("eventfd: ", std::strerror(errno)));
  }

  void push(Item item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    if (bell_ == MailboxBell::whenever_filled || armed_) ring();
  }

  [[nodiscard]] std::deque<Item> take_all() {
    const std::lock_guard lock(mutex_);
    silence();
    return std::exchange(items_, {});
  }

  [[nodiscard]] int fd() const { return event_.get(); }

  // False when there is something inside already.
  bool arm() {
    const std::lock_guard lock(mutex_);
    armed_ = items_.empty();
    return armed_;
  }
  void disarm() {
    const std::lock_guard lock(mutex_);
    armed_ = false;
    if (bell_ == MailboxBell::when_armed) silence();
  }

 private:
  void ring() {
    if (rung_) return;
    rung_ = true;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }
  void silence() {
    if (!rung_) return;
    rung_ = false;
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
  }

  const MailboxBell bell_;
  const UniqueFd event_;
  std::mutex mutex_;
  std::deque<Item> items_;
  bool armed_ = false;
  bool rung_ = false;
};

}  // namespace rueda
