#include "core/deferred_release.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "core/log.h"
#include "core/signals_blocked.h"
#include "core/start_thread.h"

namespace rueda {

namespace {

// Some times as long as to agree on a world and to reduce in it.
constexpr auto delay = std::chrono::milliseconds(50);

}  // namespace

void DeferredRelease::take(std::shared_ptr<void> object) {
  finish();
  object_ = std::move(object);
  const SignalsBlocked blocked;
  if (const Status started = start_thread(thread_, [this] { wait(); }); !started.ok()) {
    log(LogLevel::debug, started.to_string());
    object_.reset();
  }
}

void DeferredRelease::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    hurried_ = true;
  }
  changed_.notify_all();
  thread_.join();
  hurried_ = false;
}

void DeferredRelease::wait() {
  pthread_setname_np(pthread_self(), "rueda-release");
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, delay, [this] { return hurried_; });
  }
  object_.reset();
}

}  // namespace rueda
