// Tensors in a process's own memory that the other ranks of its host read and write again and again
// through the kernel, which takes hold of each page that it copies: of one huge page instead of 512
// small ones. So what comes again is put onto huge pages, where it lies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "core/clock.h"

namespace rueda {

class RecurringMemory {
 public:
  // A tensor is put onto huge pages when it comes for the third time, and then again in ever longer
  // intervals, for what lies at its address may be other memory by then.
  static constexpr std::uint32_t first_time = 3;
  static constexpr std::uint32_t growth = 8;
  // Of how many it knows how often they came; then it forgets them all.
  static constexpr std::size_t most_tensors = 4096;

  // Of all time one part in so many may go into it, for each call to the kernel may wait for all
  // processors, on which ranks may be spinning. What was not used of the last second is still
  // there.
  static constexpr int share = 10;
  static constexpr Duration memory_of_share = std::chrono::seconds(1);

  // The other ranks are about to reach [address, address + bytes), for the `time`th time in the
  // same operation (1: whether the tensor has come before is known by its address alone). Contents
  // stay; others may read and write at the same time. Usually a look into a table; a huge page that
  // has to be made costs a fraction of a millisecond. Any thread.
  void comes(const void* address, std::size_t bytes, std::uint64_t time);

  // How much has been put onto huge pages so far; what was put again counts again.
  [[nodiscard]] std::size_t huge_page_bytes() const {
    return huge_page_bytes_.load(std::memory_order_relaxed);
  }

 private:
  [[nodiscard]] bool is_due(std::uint64_t address, std::uint64_t time);
  void put(std::uint64_t begin, std::size_t bytes);

  struct Times {
    std::uint32_t came = 0;
    std::uint32_t next = first_time;
  };
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Times> tensors_;  // by address
  Time paid_until_{};                                 // work is allowed from then on
  std::atomic<std::size_t> huge_page_bytes_{0};
};

}  // namespace rueda
