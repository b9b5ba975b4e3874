// The two ends of a ring of bytes in shared memory, one producer and one consumer.
//
// Messages in it: a header of 16 bytes, the payload, and padding up to a multiple of 16, so that a
// header never wraps around. The counters are sequentially consistent where sleeping depends on
// them: either the one who is about to sleep sees the other's counter, or the other sees that he
// sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/shm_segment.h"

namespace rueda {

struct RingHeader {
  std::uint64_t length = 0;
  std::uint32_t tag = 0;
  std::uint32_t unused = 0;
};
inline constexpr std::uint64_t ring_alignment = 16;
static_assert(sizeof(RingHeader) == ring_alignment);

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t count) {
  return (count + ring_alignment - 1) / ring_alignment * ring_alignment;
}

class RingProducer {
 public:
  RingProducer(RingControl& control, std::byte* bytes, std::size_t capacity)
      : control_(&control), bytes_(bytes), capacity_(capacity) {}

  // Room that lies side by side. The tail is rounded down, so that there is always room for padding
  // as well.
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

  // Between these two the consumer rings the bell when it has made room.
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
  RingConsumer(RingControl& control, const std::byte* bytes, std::size_t capacity)
      : control_(&control), bytes_(bytes), capacity_(capacity) {}

  // Looks for what has arrived.
  void look() { head_ = control_->head.load(std::memory_order_acquire); }
  // Of that, what lies side by side.
  [[nodiscard]] std::span<const std::byte> arrived() const {
    const std::uint64_t place = tail_ & (capacity_ - 1);
    return {bytes_ + place, static_cast<std::size_t>(std::min(head_ - tail_, capacity_ - place))};
  }
  void advance(std::size_t count) { tail_ += count; }
  void skip_padding() { tail_ = align_up(tail_); }

  // Gives the room back; true when the producer sleeps and has to be woken.
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
