#include "coordinator/watcher.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/futex.h"
#include "core/start_thread.h"
#include "core/strings.h"

namespace rueda {

namespace {

// How long stop() waits at most where the program has closed all descriptors, so that nothing ends
// poll() any more; in milliseconds. Otherwise a wake-up for nothing.
constexpr int looks_every = 5000;

}  // namespace

Status Watcher::start(int first, int second, std::function<void()> notify) {
  stop_fd_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!stop_fd_) return {ErrorCode::initialization, str("eventfd: ", std::strerror(errno))};
  notify_ = std::move(notify);
  return start_thread(thread_, [this, first, second] { watch(first, second); });
}

void Watcher::stop() {
  if (!thread_.joinable()) return;
  state_.store(stopping);
  futex_wake_all(state_);
  ::eventfd_write(stop_fd_.get(), 1);
  thread_.join();
}

void Watcher::rearm() {
  std::uint32_t expected = seen;
  if (state_.compare_exchange_strong(expected, watching)) futex_wake_all(state_);
}

void Watcher::watch(int first, int second) {
  pthread_setname_np(pthread_self(), "rueda-watch");
  for (;;) {
    std::array<pollfd, 3> watched{pollfd{stop_fd_.get(), POLLIN, 0}, pollfd{first, POLLIN, 0},
                                  pollfd{second, POLLIN, 0}};
    const int ready = ::poll(watched.data(), watched.size(), looks_every);
    if (watched[0].revents != 0 || state_.load() == stopping) return;
    if (ready <= 0) continue;
    second_.store(watched[2].revents != 0);
    std::uint32_t expected = watching;
    if (!state_.compare_exchange_strong(expected, seen)) return;
    notify_();
    while (state_.load() == seen) (void)futex_wait(state_, seen, std::nullopt);
  }
}

}  // namespace rueda
