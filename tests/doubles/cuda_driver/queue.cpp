#include "queue.h"

#include <chrono>

namespace rueda::test {

void Completion::set() {
  const std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

bool Completion::is_set() const {
  const std::lock_guard lock(mutex_);
  return set_;
}

bool Completion::wait() const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, std::chrono::steady_clock::now() + std::chrono::seconds(30),
                             [this] { return set_; });
}

Queue::Queue(int device, std::uint64_t seed, int max_delay_us)
    : device_(device),
      random_(seed),
      max_delay_us_(seed == 0 ? 0 : max_delay_us),
      thread_([this] { run(); }) {}

Queue::~Queue() {
  close();
  thread_.join();
}

void Queue::push(Step step) {
  const std::lock_guard lock(mutex_);
  steps_.push_back(std::move(step));
  changed_.notify_all();
}

bool Queue::is_idle() const {
  const std::lock_guard lock(mutex_);
  return steps_.empty() && !running_;
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void Queue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closed_ || !steps_.empty(); });
    if (steps_.empty()) return;
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    running_ = true;
    lock.unlock();
    if (max_delay_us_ > 0) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::uniform_int_distribution<int>(0, max_delay_us_)(random_)));
    }
    step();
    lock.lock();
    running_ = false;
  }
}

}  // namespace rueda::test
