// A set of watched descriptors; each has a source and an index.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/unique_fd.h"

namespace rueda {

// `Source`: an enumeration of what is watched.
template <class Source>
class EpollSet {
 public:
  struct Event {
    Source source;
    std::size_t index;     // below 2^32
    std::uint32_t events;  // EPOLLIN, ...
  };

  // False if the system has no descriptor for it; errno says why. Call before everything below.
  [[nodiscard]] bool open() {
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    return static_cast<bool>(epoll_);
  }
  // Readable while a watched descriptor is ready.
  [[nodiscard]] int fd() const { return epoll_.get(); }

  void add(int fd, std::uint32_t events, Source source, std::size_t index = 0) {
    control(EPOLL_CTL_ADD, fd, events, source, index);
  }
  void change(int fd, std::uint32_t events, Source source, std::size_t index = 0) {
    control(EPOLL_CTL_MOD, fd, events, source, index);
  }
  // Call before closing `fd`: a forked child may hold a copy, which would keep the entry alive.
  void remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  // Calls `handle(const Event&)` for what is ready, at most 64 at once; does not wait. A descriptor
  // that one call closes may still come up in a later call of the same round.
  template <class Handle>
  void for_each_ready(const Handle& handle) {
    std::array<epoll_event, 64> ready;
    const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = ready[static_cast<std::size_t>(i)];
      handle(Event{static_cast<Source>(event.data.u64 >> 32),
                   static_cast<std::size_t>(event.data.u64 & 0xffffffffU), event.events});
    }
  }

  // Async-signal-safe.
  void close() { epoll_.reset(); }

 private:
  void control(int operation, int fd, std::uint32_t events, Source source, std::size_t index) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = static_cast<std::uint64_t>(source) << 32 | index;
    ::epoll_ctl(epoll_.get(), operation, fd, &event);
  }

  UniqueFd epoll_;
};

}  // namespace rueda
