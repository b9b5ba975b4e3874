#include "reduce/key_merge.h"

#include <algorithm>
#include <array>
#include <utility>

namespace rueda {

namespace {

constexpr std::uint64_t no_key = UINT64_MAX;  // keys are signed where they come from

template <class Key>
bool ascends(const KeyedRows& part) {
  bool ascending = true;
  for (std::size_t i = 1; i < part.count; ++i) {
    ascending &= load_key<Key>(part.keys, i - 1) < load_key<Key>(part.keys, i);
  }
  return ascending;
}

// The next key of each part; a copy of its own for each number of parts, so that all of them are
// in registers.
template <class Key, std::size_t parts>
MergedKeys merge(std::span<const KeyedRows> given) {
  std::array<std::size_t, parts> places{};
  std::array<std::uint64_t, parts> next{};
  const auto load = [&](std::size_t part) {
    const KeyedRows& rows = given[part];
    return places[part] < rows.count ? load_key<Key>(rows.keys, places[part]) : no_key;
  };
  std::size_t total = 0;
  for (std::size_t part = 0; part < parts; ++part) {
    next[part] = load(part);
    total += given[part].count;
  }
  MergedKeys merged{std::vector<std::int64_t>(total), std::vector<std::uint8_t>(total)};
  std::size_t count = 0;
  while (true) {
    const std::uint64_t key = *std::ranges::min_element(next);
    if (key == no_key) break;
    unsigned owners = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      const bool has = next[part] == key;
      owners |= static_cast<unsigned>(has) << part;
      places[part] += static_cast<std::size_t>(has);
      next[part] = load(part);
    }
    merged.keys[count] = static_cast<std::int64_t>(key);
    merged.owners[count++] = static_cast<std::uint8_t>(owners);
  }
  merged.keys.resize(count);
  merged.owners.resize(count);
  return merged;
}

template <class Key>
std::optional<MergedKeys> merged(std::span<const KeyedRows> parts) {
  if (parts.empty() || parts.size() > max_merged_parts) return std::nullopt;
  if (!std::ranges::all_of(parts, ascends<Key>)) return std::nullopt;
  MergedKeys keys;
  [&]<std::size_t... less>(std::index_sequence<less...>) {
    ((parts.size() == less + 1 ? void(keys = merge<Key, less + 1>(parts)) : void()), ...);
  }(std::make_index_sequence<max_merged_parts>());
  return keys;
}

}  // namespace

std::optional<MergedKeys> merge_keys(std::span<const KeyedRows> parts, std::size_t key_bytes) {
  return key_bytes == sizeof(std::uint32_t) ? merged<std::uint32_t>(parts)
                                            : merged<std::uint64_t>(parts);
}

}  // namespace rueda
