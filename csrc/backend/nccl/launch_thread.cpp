#include "backend/nccl/launch_thread.h"

#include <system_error>
#include <utility>

#include "core/futex.h"
#include "core/signals_blocked.h"
#include "core/strings.h"

namespace rueda {

namespace {

// How long the thread spins for its next job, and others for its end, before they sleep. A training
// step's calls come in quick succession, and waking a thread takes longer than a call.
constexpr Duration spin_time = std::chrono::microseconds(50);

// Whether `question` becomes true within that time.
template <class Question>
bool spin(const Question& question) {
  if (question()) return true;
  if (std::thread::hardware_concurrency() < 2) return false;
  const Time end = Clock::now() + spin_time;
  while (Clock::now() < end) {
    if (question()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace

Status LaunchThread::start(DeviceReference device) {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this, device = std::move(device)] { run(device); });
  } catch (const std::system_error& error) {
    return {ErrorCode::internal, str("no thread to call NCCL: ", error.what())};
  }
  return {};
}

void LaunchThread::post(Job job) {
  job_ = std::move(job);
  word_.store(busy);
  if (sleepers_.load() > 0) futex_wake_all(word_);
}

bool LaunchThread::wait_until_idle(std::optional<Time> deadline) const {
  if (spin([this] { return is_idle(); })) return true;
  for (;;) {
    sleepers_.fetch_add(1);
    if (!is_idle()) futex_wait(word_, busy, deadline);
    sleepers_.fetch_sub(1);
    if (is_idle()) return true;
    if (deadline && Clock::now() >= *deadline) return false;
  }
}

void LaunchThread::stop() {
  if (!thread_.joinable()) return;
  wait_until_idle(std::nullopt);
  word_.store(stopped);
  futex_wake_all(word_);
  thread_.join();
  word_.store(idle);
}

bool LaunchThread::await_job() {
  const auto has_come = [this] { return !is_idle(); };
  while (!spin(has_come)) {
    sleepers_.fetch_add(1);
    while (is_idle()) futex_wait(word_, idle, std::nullopt);
    sleepers_.fetch_sub(1);
  }
  return word_.load(std::memory_order_acquire) == busy;
}

void LaunchThread::run(const DeviceReference& device) {
  const CurrentDevice current(*device);
  while (await_job()) {
    std::exchange(job_, {})(current.status());
    word_.store(idle);
    if (sleepers_.load() > 0) futex_wake_all(word_);
  }
}

}  // namespace rueda
