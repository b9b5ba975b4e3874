#include "coordinator/early_messages.h"

#include <algorithm>
#include <utility>

namespace rueda {

std::size_t EarlyMessages::keep(int set_id, int peer, std::span<const std::byte> payload) {
  if (evicted_.contains(set_id)) return 1;
  std::size_t dropped = 0;
  if (!sets_.contains(set_id)) dropped += make_room_for_set();
  const auto [found, is_new] = sets_.try_emplace(set_id);
  if (is_new) found->second.since = count_++;
  if (found->second.is_overfull) return dropped + 1;
  found->second.messages.push_back({peer, {payload.begin(), payload.end()}});
  found->second.bytes += cost_of(payload.size());
  bytes_ += cost_of(payload.size());
  if (bytes_ <= max_bytes) return dropped;
  // The largest set, not the sender of the last message, which may be the first of a healthy set.
  auto& [id, largest] = *std::max_element(
      sets_.begin(), sets_.end(),
      [](const auto& one, const auto& other) { return one.second.bytes < other.second.bytes; });
  dropped += largest.messages.size();
  bytes_ -= std::exchange(largest.bytes, 0);
  largest.messages = {};
  largest.is_overfull = true;
  return dropped;
}

std::size_t EarlyMessages::make_room_for_set() {
  if (sets_.size() < max_sets) return 0;
  const auto oldest = std::min_element(
      sets_.begin(), sets_.end(),
      [](const auto& one, const auto& other) { return one.second.since < other.second.since; });
  const int set_id = oldest->first;
  const std::size_t dropped = take(set_id).messages.size();
  remember_evicted(set_id);
  return dropped;
}

void EarlyMessages::remember_evicted(int set_id) {
  if (evictions_.size() == max_evicted) {
    evicted_.erase(evictions_.front());
    evictions_.pop_front();
  }
  evicted_.insert(set_id);
  evictions_.push_back(set_id);
}

EarlyMessages::Kept EarlyMessages::take(int set_id) {
  const auto found = sets_.extract(set_id);
  if (!found) {
    Kept nothing;
    nothing.is_overfull = evicted_.erase(set_id) > 0;
    return nothing;
  }
  bytes_ -= found.mapped().bytes;
  return std::move(found.mapped());
}

}  // namespace rueda
