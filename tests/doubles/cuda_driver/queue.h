// A stream of the double: steps in order, on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace rueda::test {

// A moment that others wait for.
class Completion {
 public:
  void set();
  [[nodiscard]] bool is_set() const;
  // False after half a minute: whoever should have set it never will.
  [[nodiscard]] bool wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool set_ = false;
};

class Queue {
 public:
  using Step = std::function<void()>;

  // Sleeps before each step, at random, unless `seed` is 0.
  Queue(int device, std::uint64_t seed, int max_delay_us);
  ~Queue();  // after all steps
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(Step step);
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] int device() const { return device_; }
  // Takes no more and ends its thread when all is done; does not wait.
  void close();

 private:
  void run();

  const int device_;
  std::mt19937_64 random_;
  const int max_delay_us_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Step> steps_;
  bool running_ = false;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace rueda::test
