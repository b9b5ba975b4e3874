// Tracks the free parts of a range of numbers: an allocator's bookkeeping, kept separate from the
// memory, which others may write to.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace rueda {

struct FreeRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  [[nodiscard]] std::uint64_t length() const { return end - begin; }
};

class FreeRanges {
 public:
  // If `boundary` is given, free ranges do not merge across its multiples.
  explicit FreeRanges(std::uint64_t boundary = 0) : boundary_(boundary) {}

  // Takes `length` numbers, starting at a multiple of `alignment`, from the shortest free range
  // that has room. Returns their beginning; nullopt if there is no room.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t length, std::uint64_t alignment);
  // Frees a range, which must be in use, and returns the whole free range that it is now part of.
  FreeRange give(FreeRange range);
  // Takes a range that give() returned.
  void take_whole(FreeRange range);

 private:
  struct BySize {
    bool operator()(const FreeRange& one, const FreeRange& other) const {
      if (one.length() != other.length()) return one.length() < other.length();
      return one.begin < other.begin;
    }
  };
  [[nodiscard]] bool may_join_at(std::uint64_t place) const {
    return boundary_ == 0 || place % boundary_ != 0;
  }
  void insert(FreeRange range);

  std::uint64_t boundary_;
  std::map<std::uint64_t, std::uint64_t> by_begin_;  // to its end
  std::set<FreeRange, BySize> by_size_;
};

}  // namespace rueda
