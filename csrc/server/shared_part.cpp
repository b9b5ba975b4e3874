#include "server/shared_part.h"

#include <cerrno>
#include <ctime>

namespace rueda {

namespace {

// Tries before waiting; an uninterrupted holder needs less time than that.
constexpr int attempts = 64;

timespec moment_after(std::chrono::microseconds limit) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const auto nanoseconds = std::chrono::nanoseconds(limit).count() + now.tv_nsec;
  constexpr std::int64_t second = 1'000'000'000;
  return {now.tv_sec + static_cast<time_t>(nanoseconds / second),
          static_cast<long>(nanoseconds % second)};
}

int lock_within(pthread_mutex_t& mutex, std::chrono::microseconds limit) {
  for (int attempt = 0; attempt < attempts; ++attempt) {
    const int result = ::pthread_mutex_trylock(&mutex);
    if (result != EBUSY) return result;
  }
  const timespec until = moment_after(limit);
  return ::pthread_mutex_timedlock(&mutex, &until);
}

}  // namespace

bool SharedPart::init() {
  pthread_mutexattr_t attributes;
  if (::pthread_mutexattr_init(&attributes) != 0) return false;
  const bool made = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                    ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                    ::pthread_mutex_init(&mutex, &attributes) == 0;
  ::pthread_mutexattr_destroy(&attributes);
  if (made) state.store(open, std::memory_order_release);
  return made;
}

void SharedPart::close() {
  if (state.load(std::memory_order_acquire) != open) return;
  const SharedPartLock lock(*this, std::chrono::seconds(1));
  if (!lock) is_torn.store(1);
  state.store(closed, std::memory_order_release);
}

SharedPartLock::SharedPartLock(SharedPart& part, std::chrono::microseconds limit) : part_(part) {
  const int result = lock_within(part.mutex, limit);
  if (result != 0 && result != EOWNERDEAD) return;
  if (result == EOWNERDEAD) {
    if (part.is_changing.load() != 0) part.is_torn.store(1);
    ::pthread_mutex_consistent(&part.mutex);
  }
  has_it_ = true;
}

SharedPartLock::~SharedPartLock() {
  if (has_it_) ::pthread_mutex_unlock(&part_.mutex);
}

}  // namespace rueda
