// Merges the keys of a few parts of rows that each have distinct keys in ascending order, as the
// ranks' parts of a sparse tensor usually do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reduce/keyed_rows.h"

namespace rueda {

constexpr std::size_t max_merged_parts = 8;

// The distinct keys of all parts, ascending, and for each the parts that have it: bit i stands for
// part i.
struct MergedKeys {
  std::vector<std::int64_t> keys;
  std::vector<std::uint8_t> owners;
};

// Reads each key once, and takes no unpredictable branch. nullopt if there are more parts than
// max_merged_parts, or if some part's keys repeat or do not ascend. `key_bytes`: 4 or 8.
[[nodiscard]] std::optional<MergedKeys> merge_keys(std::span<const KeyedRows> parts,
                                                   std::size_t key_bytes);

}  // namespace rueda
