// The memory that the ranks of one host share: a ring per ordered pair of ranks and a flag per
// rank.
//
// Everything in it is zero at first and consists of plain bytes and lock-free atomics. It has no
// name: it is an anonymous file whose descriptor is handed on, so nothing is left behind however
// the ranks end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

// Counters of one ring, in bytes since the beginning; each on a cache line of its own, since
// different ranks write them.
struct RingControl {
  alignas(
      64) std::atomic<std::uint64_t> head;  // written by the producer: this much has been put in
  alignas(
      64) std::atomic<std::uint64_t> tail;  // written by the consumer: this much has been taken out
  // Set by a producer that sleeps until there is room; cleared by whoever wakes it.
  alignas(64) std::atomic<std::uint32_t> producer_sleeps;
};
struct SleepFlag {
  // Set by a rank that sleeps until a message arrives; cleared by whoever wakes it.
  alignas(64) std::atomic<std::uint32_t> sleeps;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

class ShmSegment {
 public:
  // For `size` ranks with rings of `ring_bytes` each, a power of two from 4096. Takes memory only
  // as it is touched.
  static Expected<std::shared_ptr<ShmSegment>> create(int size, std::size_t ring_bytes);
  // The one that another process has created with the same measures.
  static Expected<std::shared_ptr<ShmSegment>> open(UniqueFd fd, int size, std::size_t ring_bytes);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::size_t ring_bytes() const { return ring_bytes_; }

  [[nodiscard]] SleepFlag& flag(int rank) const;
  [[nodiscard]] RingControl& control(int from, int to) const;
  // Begins on a page.
  [[nodiscard]] std::byte* bytes(int from, int to) const;

 private:
  ShmSegment(UniqueFd fd, void* memory, int size, std::size_t ring_bytes);

  UniqueFd fd_;
  std::byte* memory_;
  int size_;
  std::size_t ring_bytes_;
};

}  // namespace rueda
