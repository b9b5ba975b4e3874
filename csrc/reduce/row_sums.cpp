#include "reduce/row_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "reduce/combine.h"

namespace rueda {

namespace {

// Collects rows whose sums can be formed in one call: as many inputs, each adjacent to its last.
class Run {
 public:
  Run(const Combiner& combiner, std::size_t width, std::size_t row_bytes, std::byte* target)
      : combiner_(combiner), width_(width), row_bytes_(row_bytes), target_(target) {}

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

  const Combiner& combiner_;
  const std::size_t width_;
  const std::size_t row_bytes_;
  std::byte* target_;
  std::vector<const std::byte*> inputs_;
  std::size_t rows_ = 0;
};

}  // namespace

RowSums::RowSums(std::span<const KeyedRows> parts, std::size_t key_bytes, std::size_t width,
                 DataType dtype)
    : parts_(parts.begin(), parts.end()),
      key_bytes_(key_bytes),
      width_(width),
      dtype_(dtype),
      merged_(merge_keys(parts, key_bytes)) {
  if (merged_) {
    count_ = static_cast<std::int64_t>(merged_->keys.size());
    return;
  }
  sort();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (i == 0 || rows_[i].key != rows_[i - 1].key) ++count_;
  }
}

// Stable, digit by digit from the lowest. Digits that all keys have in common are skipped, so what
// it takes depends on the extent of the keys.
void RowSums::sort() {
  constexpr unsigned bits = 11;
  constexpr std::size_t digits = std::size_t{1} << bits;
  const std::size_t row_bytes = width_ * size_of(dtype_);
  const auto key_at =
      key_bytes_ == sizeof(std::uint32_t) ? &load_key<std::uint32_t> : &load_key<std::uint64_t>;
  std::size_t total = 0;
  for (const KeyedRows& part : parts_) total += part.count;
  rows_.reserve(total);
  for (const KeyedRows& part : parts_) {
    for (std::size_t i = 0; i < part.count; ++i) {
      rows_.push_back({key_at(part.keys, i), part.values + i * row_bytes});
    }
  }
  if (std::ranges::is_sorted(rows_, {}, &Row::key)) return;
  std::uint64_t differing = 0;
  for (const Row& row : rows_) differing |= row.key ^ rows_.front().key;
  std::vector<Row> sorted(rows_.size());
  std::vector<std::size_t> places(digits);
  for (unsigned shift = 0; shift < 64; shift += bits) {
    if ((differing >> shift) % digits == 0) continue;
    std::ranges::fill(places, 0);
    for (const Row& row : rows_) ++places[(row.key >> shift) % digits];
    std::size_t begin = 0;
    for (std::size_t& place : places) begin += std::exchange(place, begin);
    for (const Row& row : rows_) sorted[places[(row.key >> shift) % digits]++] = row;
    rows_.swap(sorted);
  }
}

void RowSums::write(std::int64_t* keys, std::byte* values, int divisor, double factor) const {
  const auto op = divisor == 1 ? ReduceOp::sum : ReduceOp::average;
  const Combiner combiner({.dtype = dtype_, .op = op, .divisor = divisor, .postscale = factor});
  merged_ ? write_merged(keys, values, combiner) : write_sorted(keys, values, combiner);
}

// As long as the same parts have the keys, their rows lie one after another in each of them.
void RowSums::write_merged(std::int64_t* keys, std::byte* values, const Combiner& combiner) const {
  std::ranges::copy(merged_->keys, keys);
  const std::size_t row_bytes = width_ * size_of(dtype_);
  const std::vector<std::uint8_t>& owners = merged_->owners;
  std::array<const std::byte*, max_merged_parts> next{};
  std::array<const std::byte*, max_merged_parts> inputs{};
  std::ranges::transform(parts_, next.begin(), &KeyedRows::values);
  for (std::size_t begin = 0; begin < owners.size();) {
    std::size_t end = begin + 1;
    while (end < owners.size() && owners[end] == owners[begin]) ++end;
    const std::size_t rows = end - begin;
    std::size_t count = 0;
    for (unsigned left = owners[begin]; left != 0; left &= left - 1) {
      const std::byte*& input = next[static_cast<std::size_t>(std::countr_zero(left))];
      inputs[count++] = input;
      input += rows * row_bytes;
    }
    combiner(std::array{values}, {inputs.data(), count}, static_cast<std::int64_t>(rows * width_),
             Stores::cached);
    values += rows * row_bytes;
    begin = end;
  }
}

void RowSums::write_sorted(std::int64_t* keys, std::byte* values, const Combiner& combiner) const {
  Run run(combiner, width_, width_ * size_of(dtype_), values);
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
