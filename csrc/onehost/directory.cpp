// The directory and lanes of a control memory, which several ranks access concurrently.
#include <cstddef>

#include "onehost/control_memory.h"

namespace rueda {

namespace {

constexpr std::size_t slot_mask = Directory::capacity - 1;

std::size_t first_slot(std::uint64_t key) {
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 32) & slot_mask;
}

}  // namespace

std::uint64_t Directory::find(std::uint64_t key) const {
  for (std::size_t probe = 0; probe < capacity; ++probe) {
    const Entry& entry = entries_[(first_slot(key) + probe) & slot_mask];
    const std::uint64_t place = entry.place.load(std::memory_order_acquire);
    if (place == unused) return 0;
    if (place == removed || entry.key.load(std::memory_order_acquire) != key) continue;
    // The entry may have been replaced between the two loads.
    if (entry.place.load(std::memory_order_acquire) == place) return place;
  }
  return 0;
}

bool Directory::enter(std::uint64_t key, std::uint64_t place) {
  for (std::size_t probe = 0; probe < capacity; ++probe) {
    Entry& entry = entries_[(first_slot(key) + probe) & slot_mask];
    if (entry.place.load(std::memory_order_relaxed) > removed) continue;
    entry.key.store(key, std::memory_order_release);
    entry.place.store(place, std::memory_order_release);
    return true;
  }
  return false;
}

void Directory::remove(std::uint64_t key) {
  for (std::size_t probe = 0; probe < capacity; ++probe) {
    const std::size_t slot = (first_slot(key) + probe) & slot_mask;
    const std::uint64_t place = entries_[slot].place.load(std::memory_order_relaxed);
    if (place == unused) return;
    if (place == removed || entries_[slot].key.load(std::memory_order_relaxed) != key) continue;
    entries_[slot].place.store(removed, std::memory_order_release);
    // Removed entries at the end of a probe sequence become unused, so that searches stay short.
    const auto ends_row = [&](std::size_t last) {
      return entries_[last].place.load(std::memory_order_relaxed) == removed &&
             entries_[(last + 1) & slot_mask].place.load(std::memory_order_relaxed) == unused;
    };
    for (std::size_t last = slot; ends_row(last); last = (last - 1) & slot_mask) {
      entries_[last].place.store(unused, std::memory_order_release);
    }
    return;
  }
}

bool RetirementLane::put(std::uint64_t key) {
  const std::uint32_t sent = sent_.load(std::memory_order_relaxed);
  if (sent - taken_.load(std::memory_order_acquire) >= capacity) return false;
  keys_[sent % capacity].store(key, std::memory_order_relaxed);
  sent_.store(sent + 1, std::memory_order_release);
  return true;
}

bool RetirementLane::take(std::uint64_t& key) {
  const std::uint32_t taken = taken_.load(std::memory_order_relaxed);
  if (sent_.load(std::memory_order_acquire) == taken) return false;
  key = keys_[taken % capacity].load(std::memory_order_relaxed);
  taken_.store(taken + 1, std::memory_order_release);
  return true;
}

}  // namespace rueda
