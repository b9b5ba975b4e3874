#include "onehost/free_ranges.h"

#include <iterator>

namespace rueda {

std::optional<std::uint64_t> FreeRanges::take(std::uint64_t length, std::uint64_t alignment) {
  for (auto found = by_size_.lower_bound({0, length}); found != by_size_.end(); ++found) {
    const FreeRange range = *found;
    const std::uint64_t begin = (range.begin + alignment - 1) / alignment * alignment;
    if (begin > range.end || range.end - begin < length) continue;
    take_whole(range);
    if (range.begin < begin) insert({range.begin, begin});
    if (begin + length < range.end) insert({begin + length, range.end});
    return begin;
  }
  return std::nullopt;
}

FreeRange FreeRanges::give(FreeRange range) {
  const auto next = by_begin_.lower_bound(range.begin);
  if (next != by_begin_.end() && next->first == range.end && may_join_at(range.end)) {
    const FreeRange after{next->first, next->second};
    range.end = after.end;
    take_whole(after);
  }
  const auto behind = by_begin_.lower_bound(range.begin);
  if (behind != by_begin_.begin() && may_join_at(range.begin)) {
    const FreeRange before{std::prev(behind)->first, std::prev(behind)->second};
    if (before.end == range.begin) {
      range.begin = before.begin;
      take_whole(before);
    }
  }
  insert(range);
  return range;
}

void FreeRanges::take_whole(FreeRange range) {
  by_begin_.erase(range.begin);
  by_size_.erase(range);
}

void FreeRanges::insert(FreeRange range) {
  by_begin_.emplace(range.begin, range.end);
  by_size_.insert(range);
}

}  // namespace rueda
