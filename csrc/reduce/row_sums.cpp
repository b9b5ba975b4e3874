#include "reduce/row_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "reduce/combine.h"

namespace rueda {

namespace {

template <class Key>
std::uint64_t load_key(const void* keys, std::size_t place) {
  Key key;
  std::memcpy(&key, static_cast<const std::byte*>(keys) + place * sizeof key, sizeof key);
  return key;
}

// Collects rows whose sums can be formed in one call: as many inputs, each adjacent to its last.
class Run {
 public:
  Run(const Combination& combination, std::size_t width, std::byte* target)
      : combiner_(combination),
        width_(width),
        row_bytes_(width * size_of(combination.dtype)),
        target_(target) {}

  // The next row is the combination of the rows that `input(i)` points to.
  template <class Input>
  void add(std::size_t inputs, const Input& input) {
    if (!continues(inputs, input)) {
      write();
      inputs_.resize(inputs);
      for (std::size_t i = 0; i < inputs; ++i) inputs_[i] = input(i);
    }
    ++rows_;
  }

  void write() {
    if (rows_ == 0) return;
    const auto values = static_cast<std::int64_t>(rows_ * width_);
    combiner_(std::array{target_}, inputs_, values, Stores::cached);
    target_ += rows_ * row_bytes_;
    rows_ = 0;
  }

 private:
  template <class Input>
  [[nodiscard]] bool continues(std::size_t inputs, const Input& input) const {
    if (rows_ == 0 || inputs != inputs_.size()) return false;
    for (std::size_t i = 0; i < inputs; ++i) {
      if (input(i) != inputs_[i] + rows_ * row_bytes_) return false;
    }
    return true;
  }

  const Combiner combiner_;
  const std::size_t width_;
  const std::size_t row_bytes_;
  std::byte* target_;
  std::vector<const std::byte*> inputs_;
  std::size_t rows_ = 0;
};

}  // namespace

RowSums::RowSums(std::span<const KeyedRows> parts, std::size_t key_bytes, std::size_t width,
                 DataType dtype)
    : width_(width), dtype_(dtype) {
  const std::size_t row_bytes = width * size_of(dtype);
  std::size_t total = 0;
  for (const KeyedRows& part : parts) total += part.count;
  rows_.reserve(total);
  const auto key_at =
      key_bytes == sizeof(std::uint32_t) ? &load_key<std::uint32_t> : &load_key<std::uint64_t>;
  for (const KeyedRows& part : parts) {
    for (std::size_t i = 0; i < part.count; ++i) {
      rows_.push_back({key_at(part.keys, i), part.values + i * row_bytes});
    }
  }
  sort(rows_);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (i == 0 || rows_[i].key != rows_[i - 1].key) ++count_;
  }
}

// Stable, digit by digit from the lowest. Digits that all keys have in common are skipped, so what
// it takes depends on the extent of the keys.
void RowSums::sort(std::vector<Row>& rows) {
  constexpr unsigned bits = 11;
  constexpr std::size_t digits = std::size_t{1} << bits;
  if (std::ranges::is_sorted(rows, {}, &Row::key)) return;
  std::uint64_t differing = 0;
  for (const Row& row : rows) differing |= row.key ^ rows.front().key;
  std::vector<Row> sorted(rows.size());
  std::vector<std::size_t> places(digits);
  for (unsigned shift = 0; shift < 64; shift += bits) {
    if ((differing >> shift) % digits == 0) continue;
    std::ranges::fill(places, 0);
    for (const Row& row : rows) ++places[(row.key >> shift) % digits];
    std::size_t begin = 0;
    for (std::size_t& place : places) begin += std::exchange(place, begin);
    for (const Row& row : rows) sorted[places[(row.key >> shift) % digits]++] = row;
    rows.swap(sorted);
  }
}

void RowSums::write(std::int64_t* keys, std::byte* values, int divisor, double factor) const {
  const auto op = divisor == 1 ? ReduceOp::sum : ReduceOp::average;
  Run run({.dtype = dtype_, .op = op, .divisor = divisor, .postscale = factor}, width_, values);
  for (std::size_t begin = 0; begin < rows_.size();) {
    std::size_t end = begin + 1;
    while (end < rows_.size() && rows_[end].key == rows_[begin].key) ++end;
    *keys++ = static_cast<std::int64_t>(rows_[begin].key);
    run.add(end - begin, [&](std::size_t i) { return rows_[begin + i].values; });
    begin = end;
  }
  run.write();
}

}  // namespace rueda
