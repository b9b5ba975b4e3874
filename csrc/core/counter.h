// A number that one thread increments and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace rueda {

class Counter {
 public:
  // Only for the one writer; cheaper than an atomic addition.
  void add(std::int64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

// Any thread may increment it.
class SharedCounter {
 public:
  void add(std::int64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  [[nodiscard]] std::int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

}  // namespace rueda
