// Events in the order of their times; those of one time in the order in which they were added.
//
// A radix heap: time only goes forward, so an event is moved to a finer bucket as its time comes
// nearer. What comes next is sorted, and can be looked at before it is taken.
// Ahuja, Mehlhorn, Orlin and Tarjan, "Faster algorithms for the shortest path problem", 1990.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace rueda::simulate {

template <class Event>
class EventQueue {
 public:
  // The time of the event that was taken last.
  [[nodiscard]] Time now() const { return Time(Duration(static_cast<Duration::rep>(now_))); }
  [[nodiscard]] bool empty() const { return size_ == 0; }

  // Not before now().
  void add(Time at, Event event) {
    const auto key = std::max(now_, static_cast<std::uint64_t>(at.time_since_epoch().count()));
    ++size_;
    if (key > sorted_until_) {
      bucket_of(key).push_back({key, std::move(event)});
      return;
    }
    const auto place =
        std::upper_bound(sorted_.begin() + static_cast<std::ptrdiff_t>(taken_), sorted_.end(), key,
                         [](std::uint64_t value, const Item& item) { return value < item.key; });
    sorted_.insert(place, {key, std::move(event)});
  }

  // There must be one.
  Event take() {
    while (taken_ == sorted_.size()) refill();
    --size_;
    Item& item = sorted_[taken_++];
    now_ = item.key;
    return std::move(item.event);
  }

  // The one that will be taken after so many others, unless one is added that comes before it; null
  // where that is not known.
  [[nodiscard]] const Event* after(std::size_t others) const {
    return taken_ + others < sorted_.size() ? &sorted_[taken_ + others].event : nullptr;
  }

 private:
  struct Item {
    std::uint64_t key;  // time
    Event event;
  };

  // A bucket of so many is sorted; one of more is divided first.
  static constexpr std::size_t max_sorted = 256;

  // By the highest bit in which the time differs from `base_`, which no event comes before.
  std::vector<Item>& bucket_of(std::uint64_t key) {
    return buckets_[static_cast<std::size_t>(std::bit_width(key ^ base_))];
  }

  void refill() {
    const auto next = std::find_if(buckets_.begin(), buckets_.end(),
                                   [](const auto& bucket) { return !bucket.empty(); });
    const auto earlier = [](const Item& left, const Item& right) { return left.key < right.key; };
    sorted_.clear();
    taken_ = 0;
    if (next == buckets_.begin() || next->size() <= max_sorted) {
      sorted_.swap(*next);
      // Ranks in step add events in the order of their times.
      if (!std::is_sorted(sorted_.begin(), sorted_.end(), earlier)) {
        std::stable_sort(sorted_.begin(), sorted_.end(), earlier);
      }
      base_ = sorted_.front().key;
      const auto width = static_cast<int>(next - buckets_.begin());  // of what differs
      sorted_until_ = width == 0 ? base_ : base_ | ((std::uint64_t{1} << (width - 1)) - 1);
      return;
    }
    divided_.swap(*next);
    base_ = std::min_element(divided_.begin(), divided_.end(), earlier)->key;
    for (Item& item : divided_) bucket_of(item.key).push_back(std::move(item));
    divided_.clear();
  }

  std::array<std::vector<Item>, 65> buckets_;
  std::vector<Item> divided_;
  std::vector<Item> sorted_;  // all up to `sorted_until_`
  std::size_t taken_ = 0;     // of these
  std::uint64_t sorted_until_ = 0;
  std::uint64_t base_ = 0;
  std::uint64_t now_ = 0;
  std::size_t size_ = 0;
};

}  // namespace rueda::simulate
