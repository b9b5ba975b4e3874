#include "reduce/key_samples.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reduce/key_merge.h"

namespace rueda {

namespace {

constexpr std::uint64_t largest_hash = INT64_MAX;

// Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014.
std::uint64_t hash_of(std::uint64_t key) {
  std::uint64_t hashed = key * 0x9e3779b97f4a7c15;
  hashed = (hashed ^ (hashed >> 32)) * 0xc2b2ae3d27d4eb4f;
  return (hashed ^ (hashed >> 29)) & largest_hash;
}

using Candidate = std::pair<std::uint64_t, std::int64_t>;  // hash and key

// Keeps the `limit` smallest.
void drop_largest(std::vector<Candidate>& candidates, std::size_t limit) {
  if (candidates.size() <= limit) return;
  std::ranges::nth_element(candidates, candidates.begin() + static_cast<std::ptrdiff_t>(limit));
  candidates.resize(limit);
}

template <class Key>
std::vector<std::int64_t> sample_of(const KeyedRows& rows, std::size_t limit) {
  std::vector<Candidate> candidates;
  const std::size_t room = 4 * limit;  // so that few of many keys are looked at more than once
  candidates.reserve(std::min(room, rows.count));
  std::uint64_t below = UINT64_MAX;
  for (std::size_t i = 0; i < rows.count; ++i) {
    const std::uint64_t key = load_key<Key>(rows.keys, i);
    const std::uint64_t hash = hash_of(key);
    if (hash >= below) continue;
    candidates.emplace_back(hash, static_cast<std::int64_t>(key));
    if (candidates.size() < room || rows.count <= limit) continue;
    drop_largest(candidates, limit);
    below = std::ranges::max_element(candidates)->first;
  }
  if (rows.count > limit) drop_largest(candidates, limit);
  std::vector<std::int64_t> keys;
  keys.reserve(candidates.size());
  for (const auto& [hash, key] : candidates) keys.push_back(key);
  std::ranges::sort(keys);
  return keys;
}

template <class Key>
void append(std::vector<std::int64_t>& keys, const KeyedRows& rows) {
  for (std::size_t i = 0; i < rows.count; ++i) {
    keys.push_back(static_cast<std::int64_t>(load_key<Key>(rows.keys, i)));
  }
}

bool is_narrow(std::size_t key_bytes) {
  return key_bytes == sizeof(std::uint32_t);
}

std::vector<std::int64_t> keys_of(const KeyedRows& rows, std::size_t key_bytes) {
  std::vector<std::int64_t> keys;
  keys.reserve(rows.count);
  is_narrow(key_bytes) ? append<std::uint32_t>(keys, rows) : append<std::uint64_t>(keys, rows);
  return keys;
}

std::uint64_t hash_of_signed(std::int64_t key) {
  return hash_of(static_cast<std::uint64_t>(key));
}

std::vector<std::int64_t> union_of(std::span<const KeySample> samples, std::size_t key_bytes) {
  std::vector<KeyedRows> parts;
  for (const KeySample& sample : samples) parts.push_back(sample.keys);
  if (auto merged = merge_keys(parts, key_bytes)) return std::move(merged->keys);
  std::vector<std::int64_t> all;
  for (const KeyedRows& part : parts) {
    const auto keys = keys_of(part, key_bytes);
    all.insert(all.end(), keys.begin(), keys.end());
  }
  std::ranges::sort(all);
  all.erase(std::ranges::unique(all).begin(), all.end());
  return all;
}

}  // namespace

std::vector<std::int64_t> sample_keys(const KeyedRows& rows, std::size_t key_bytes,
                                      std::size_t limit) {
  return is_narrow(key_bytes) ? sample_of<std::uint32_t>(rows, limit)
                              : sample_of<std::uint64_t>(rows, limit);
}

UnionSample::UnionSample(std::span<const KeySample> samples, std::size_t key_bytes,
                         std::int64_t extent)
    : keys_(union_of(samples, key_bytes)), rows_(static_cast<std::int64_t>(keys_.size())) {
  std::uint64_t limit = UINT64_MAX;  // up to this hash, all samples are complete
  std::int64_t most = 0;
  std::int64_t total = 0;
  for (const KeySample& sample : samples) {
    most = std::max(most, sample.rows);
    total += sample.rows;
    if (static_cast<std::int64_t>(sample.keys.count) >= sample.rows) continue;
    std::uint64_t largest = 0;
    for (const std::int64_t key : keys_of(sample.keys, key_bytes)) {
      largest = std::max(largest, hash_of_signed(key));
    }
    limit = std::min(limit, largest);
  }
  if (limit == UINT64_MAX) return;
  std::erase_if(keys_, [&](std::int64_t key) { return hash_of_signed(key) > limit; });
  const double part = static_cast<double>(limit) / static_cast<double>(largest_hash);
  const double estimate = part > 0 ? static_cast<double>(keys_.size() - 1) / part : 0;
  const std::int64_t bound = std::min(total, extent);
  const bool is_bounded = estimate < static_cast<double>(bound);
  rows_ = std::max<std::int64_t>(most, is_bounded ? std::llround(estimate) : bound);
}

std::vector<std::int64_t> UnionSample::boundaries(std::size_t parts) const {
  std::vector<std::int64_t> first;
  if (keys_.empty()) return first;
  for (std::size_t part = 1; part < parts; ++part) {
    first.push_back(keys_[keys_.size() * part / parts]);
  }
  return first;
}

}  // namespace rueda
