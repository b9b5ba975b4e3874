// The places of rows: a hash table with linear probing in memory that may be shared (Knuth, The Art
// of Computer Programming, volume 3, section 6.4, algorithm L). It is at most half full.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rueda {

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// How many rows ahead to prefetch, so that their memory is cached when they are used.
inline constexpr int rows_ahead = 8;

struct RowSlot {
  std::uint64_t key;    // the row's number plus 1; 0: none
  std::uint64_t where;  // offset from the beginning of the memory
};

// Zeroed slots are empty.
class RowIndex {
 public:
  RowIndex() = default;
  // `capacity`: a power of two.
  RowIndex(RowSlot* slots, std::uint64_t capacity) : slots_(slots), mask_(capacity - 1) {}

  [[nodiscard]] const RowSlot* find(std::int64_t row) const {
    if (slots_ == nullptr) return nullptr;
    const RowSlot* const found = place_of(key_of(row));
    return found->key == 0 ? nullptr : found;
  }
  // For a row that does not exist; there must be room.
  void insert(std::int64_t row, std::uint64_t where) {
    *place_of(key_of(row)) = {key_of(row), where};
  }
  // The row will be looked up soon.
  void prefetch(std::int64_t row) const {
    if (slots_ != nullptr) __builtin_prefetch(&slots_[first_of(key_of(row))]);
  }
  [[nodiscard]] std::uint64_t capacity() const { return slots_ == nullptr ? 0 : mask_ + 1; }
  [[nodiscard]] const RowSlot& at(std::uint64_t slot) const { return slots_[slot]; }
  [[nodiscard]] static std::int64_t row_of(const RowSlot& slot) {
    return static_cast<std::int64_t>(slot.key - 1);
  }

 private:
  static std::uint64_t key_of(std::int64_t row) { return static_cast<std::uint64_t>(row) + 1; }
  [[nodiscard]] std::uint64_t first_of(std::uint64_t key) const { return mixed(key) & mask_; }
  [[nodiscard]] RowSlot* place_of(std::uint64_t key) const {
    std::uint64_t slot = first_of(key);
    while (slots_[slot].key != 0 && slots_[slot].key != key) slot = (slot + 1) & mask_;
    return &slots_[slot];
  }

  RowSlot* slots_ = nullptr;
  std::uint64_t mask_ = 0;
};

}  // namespace rueda
