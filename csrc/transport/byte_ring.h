// A ring of bytes between two ranks, with one producer and one consumer. Its length is a power of
// two, at least 4096.
//
// A message consists of a 32-byte header, the payload, and padding up to a multiple of 32, so that
// a header never wraps around. The counters that sleeping depends on are sequentially consistent:
// either the side about to sleep sees the other's counter, or the other side sees that it sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/tag.h"

namespace rueda {

// Counters of one ring, in bytes since the beginning. Each has its own cache line, since different
// ranks write them.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> head;  // written by the producer: bytes put in
  alignas(64) std::atomic<std::uint64_t> tail;  // written by the consumer: bytes taken out
  // Set by a producer that sleeps until there is room; cleared by the rank that wakes it.
  alignas(64) std::atomic<std::uint32_t> producer_sleeps;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

// What the peers of one rank write: the counters of the rings from each of them to it, and whether
// it sleeps. Initially zero. Peers may be processes.
class Inbox {
 public:
  Inbox() = default;
  // `memory` is aligned to a cache line.
  explicit Inbox(std::byte* memory) : memory_(memory) {}
  [[nodiscard]] static constexpr std::size_t bytes(int peers) {
    return sizeof(SleepFlag) + static_cast<std::size_t>(peers) * sizeof(RingControl);
  }

  // Set by the rank that sleeps until a message arrives; cleared by the rank that wakes it.
  [[nodiscard]] std::atomic<std::uint32_t>& sleeps() const {
    return reinterpret_cast<SleepFlag*>(memory_)->sleeps;
  }
  [[nodiscard]] RingControl& from(int peer) const {
    return reinterpret_cast<RingControl*>(memory_ + sizeof(SleepFlag))[peer];
  }

 private:
  struct SleepFlag {
    alignas(64) std::atomic<std::uint32_t> sleeps;
  };

  std::byte* memory_ = nullptr;
};

struct RingHeader {
  std::uint64_t length = 0;
  Tag tag;
};
inline constexpr std::uint64_t ring_alignment = 32;
static_assert(sizeof(RingHeader) == ring_alignment);

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t count) {
  return (count + ring_alignment - 1) / ring_alignment * ring_alignment;
}

class RingProducer {
 public:
  RingProducer(RingControl& control, std::span<std::byte> bytes)
      : control_(&control), bytes_(bytes.data()), capacity_(bytes.size()) {}

  // Contiguous room. The tail is rounded down, so that there is always room for padding, too.
  [[nodiscard]] std::span<std::byte> room() {
    std::uint64_t free = free_bytes();
    if (free == 0) {
      tail_ = control_->tail.load(std::memory_order_acquire);
      free = free_bytes();
    }
    const std::uint64_t place = head_ & (capacity_ - 1);
    return {bytes_ + place, static_cast<std::size_t>(std::min(free, capacity_ - place))};
  }
  void advance(std::size_t count) { head_ += count; }
  void pad() { head_ = align_up(head_); }
  void publish() { control_->head.store(head_, std::memory_order_seq_cst); }

  // Between these two calls, the consumer wakes the producer when it has made room.
  [[nodiscard]] bool sleep_unless_room() {
    control_->producer_sleeps.store(1, std::memory_order_seq_cst);
    tail_ = control_->tail.load(std::memory_order_seq_cst);
    return free_bytes() == 0;
  }
  void stay_awake() { control_->producer_sleeps.store(0, std::memory_order_relaxed); }

 private:
  [[nodiscard]] std::uint64_t free_bytes() const {
    return tail_ / ring_alignment * ring_alignment + capacity_ - head_;
  }

  RingControl* control_;
  std::byte* bytes_;
  std::uint64_t capacity_;
  std::uint64_t head_ = 0;
  std::uint64_t tail_ = 0;  // as last seen
};

class RingConsumer {
 public:
  RingConsumer(RingControl& control, std::span<const std::byte> bytes)
      : control_(&control), bytes_(bytes.data()), capacity_(bytes.size()) {}

  // Checks for new bytes.
  void look() { head_ = control_->head.load(std::memory_order_acquire); }
  // The contiguous part of what has arrived.
  [[nodiscard]] std::span<const std::byte> arrived() const {
    const std::uint64_t place = tail_ & (capacity_ - 1);
    return {bytes_ + place, static_cast<std::size_t>(std::min(head_ - tail_, capacity_ - place))};
  }
  void advance(std::size_t count) { tail_ += count; }
  void skip_padding() { tail_ = align_up(tail_); }

  // Gives the room back; true if the producer sleeps and must be woken.
  [[nodiscard]] bool release() {
    control_->tail.store(tail_, std::memory_order_seq_cst);
    return control_->producer_sleeps.load(std::memory_order_seq_cst) != 0 &&
           control_->producer_sleeps.exchange(0) != 0;
  }
  [[nodiscard]] bool is_empty() const {
    return control_->head.load(std::memory_order_seq_cst) == tail_;
  }

 private:
  RingControl* control_;
  const std::byte* bytes_;
  std::uint64_t capacity_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // as last seen
};

}  // namespace rueda
