// Which parts of a range of numbers are free: the bookkeeping of an allocator, apart from the
// memory itself, which others may write to.
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
  // No free range extends over a multiple of `boundary`, where one is given: neighbours there stay
  // apart.
  explicit FreeRanges(std::uint64_t boundary = 0) : boundary_(boundary) {}

  // The beginning of `length` free numbers, a multiple of `alignment`, from the shortest range that
  // has room; nothing where none has. They are free no longer.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t length, std::uint64_t alignment);
  // Makes the range free, which it was not, and returns the whole free range that it is part of
  // now.
  FreeRange give(FreeRange range);
  // Takes a range that give() has returned.
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
  std::map<std::uint64_t, std::uint64_t> by_begin_;  // to the end
  std::set<FreeRange, BySize> by_size_;
};

}  // namespace rueda
