// Memory that the workers of a group share: flags to meet at, and room for the measured limits.
// The driver makes it; it is the same for every contender and none of them knows of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rueda_bench {

class SharedArea {
 public:
  // Takes over a descriptor of the area and maps it. `ranks` share it. Throws std::runtime_error.
  SharedArea(int fd, int ranks);
  ~SharedArea();
  SharedArea(const SharedArea&) = delete;
  SharedArea& operator=(const SharedArea&) = delete;

  // A word of `rank` on a cache line of its own. Word 0 is the barrier's.
  [[nodiscard]] std::atomic<std::uint64_t>& word(int rank, int number) const;

  // `rank`'s part of the rest, on huge pages where the kernel gives them.
  [[nodiscard]] std::byte* room(int rank) const;
  [[nodiscard]] std::size_t room_bytes() const { return room_bytes_; }
  // Gives the memory of `rank`'s room back to the system.
  void clear_room(int rank) const;

 private:
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t room_bytes_ = 0;
  int ranks_;
};

// Lets the first `participants` ranks of the group go on together. It spins, so that they enter
// what is measured within a fraction of a microsecond; where ranks outnumber processors it yields.
class FlagBarrier {
 public:
  FlagBarrier(const SharedArea& area, int rank, bool yields)
      : area_(area), rank_(rank), yields_(yields) {}

  // Called by every rank of the group before each block, in which some may not take part.
  void begin_block() { sequence_ = ++block_ << 32; }
  // Throws std::runtime_error where the others do not come within two minutes.
  void wait(int participants);

 private:
  void await(int peer) const;

  const SharedArea& area_;
  int rank_;
  bool yields_;
  std::uint64_t block_ = 0;
  std::uint64_t sequence_ = 0;
};

// Tells the processor that this is a loop that waits.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace rueda_bench
