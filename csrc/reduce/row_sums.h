// Sums of rows that have keys, as the rows of sparse tensors do (docs/sparse.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reduce/key_merge.h"
#include "reduce/keyed_rows.h"
#include "rueda/types.h"

namespace rueda {

class Combiner;

class RowSums {
 public:
  // Orders the rows of all parts by key, equal ones in the order of parts and within each part.
  // Does not copy values: the parts' memory must stay as it is until write() has returned.
  // `key_bytes`: 4 or 8. `width`: values per row.
  RowSums(std::span<const KeyedRows> parts, std::size_t key_bytes, std::size_t width,
          DataType dtype);

  // The number of distinct keys.
  [[nodiscard]] std::int64_t count() const { return count_; }

  // Writes the distinct keys, ascending, and for each the sum of its rows in the above order, so
  // that it has the same bits wherever the parts have. 16-bit floats are summed in float32. Sums
  // are divided and multiplied (reduce/reduce.h) before they are rounded. `values` must not overlap
  // the parts.
  void write(std::int64_t* keys, std::byte* values, int divisor = 1, double factor = 1.0) const;

 private:
  struct Row {
    std::uint64_t key;
    const std::byte* values;
  };
  void sort();
  void write_merged(std::int64_t* keys, std::byte* values, const Combiner& combiner) const;
  void write_sorted(std::int64_t* keys, std::byte* values, const Combiner& combiner) const;

  std::vector<KeyedRows> parts_;
  std::size_t key_bytes_;
  std::size_t width_;
  DataType dtype_;
  std::optional<MergedKeys> merged_;  // if the parts can be merged as they are
  std::vector<Row> rows_;             // sorted; otherwise
  std::int64_t count_ = 0;
};

}  // namespace rueda
