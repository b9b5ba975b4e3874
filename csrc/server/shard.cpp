#include "server/shard.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/available_memory.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::size_t block_elements = 64 << 10;
constexpr std::size_t blocks_between_looks = 64;  // at the memory that is left: 16 MiB

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

int row_owner(std::int64_t row, std::size_t ranks) {
  return static_cast<int>(mixed(static_cast<std::uint64_t>(row)) % ranks);
}

void fill_initial(const InitialRows& initial, std::int64_t row, std::span<float> values) {
  std::fill(values.begin(), values.end(), initial.value);
  if (initial.spread == 0) return;
  std::uint64_t state = mixed(initial.seed ^ mixed(static_cast<std::uint64_t>(row)));
  for (float& value : values) {
    state = mixed(state);
    const auto unit = static_cast<float>(state >> 40) * 0x1p-24F;  // in [0, 1)
    value += initial.spread * (2 * unit - 1);
  }
}

DenseShard::DenseShard(std::int64_t begin, std::int64_t end, AppliedRule rule)
    : Shard(std::move(rule)), begin_(begin), values_(static_cast<std::size_t>(end - begin)) {
  state_.resize(values_.size() * static_cast<std::size_t>(states()));
}

Status DenseShard::check(const Selection& selection) const {
  const auto end = begin_ + static_cast<std::int64_t>(values_.size());
  const bool inside = selection.rows.empty() && selection.begin >= begin_ &&
                      selection.begin <= end && selection.count >= 0 &&
                      selection.count <= end - selection.begin;
  if (inside) return {};
  return {ErrorCode::invalid_argument, str(selection.count, " elements from ", selection.begin,
                                           " on are not all in [", begin_, ", ", end, ")")};
}

Status DenseShard::reserve(const Selection& /*selection*/, std::int64_t /*from*/,
                           std::int64_t /*to*/, Places& /*places*/) {
  return {};
}

void DenseShard::read(const Selection& selection, std::int64_t from, std::int64_t to,
                      float* out) const {
  const float* const first = values_.data() + (selection.begin - begin_);
  std::copy(first + from, first + to, out + from);
}

void DenseShard::write(const Selection& selection, const Places& /*places*/, std::int64_t from,
                       std::int64_t to, const float* values) {
  std::copy(values + from, values + to, values_.data() + (selection.begin - begin_) + from);
}

void DenseShard::add(const Selection& selection, const Places& /*places*/, std::int64_t from,
                     std::int64_t to, const float* delta, float factor) {
  const std::int64_t first = selection.begin - begin_ + from;
  apply({values_.data() + first, static_cast<std::size_t>(to - from)},
        state_.empty() ? nullptr : state_.data() + first,
        static_cast<std::ptrdiff_t>(values_.size()), delta + from, factor);
}

void DenseShard::visit(const Visitor& visitor) const {
  visitor(begin_, values_);
}

RowShard::RowShard(std::int64_t width, InitialRows initial, AppliedRule rule)
    : Shard(std::move(rule)),
      width_(width),
      initial_(initial),
      stride_(static_cast<std::size_t>(width) * (1 + static_cast<std::size_t>(states()))),
      rows_in_block_(std::max<std::size_t>(1, block_elements / stride_)) {}

Status RowShard::check(const Selection& selection) const {
  const bool fits =
      selection.count >= 0 && selection.rows.size() == static_cast<std::size_t>(selection.count);
  if (!fits) return {ErrorCode::invalid_argument, "a table of rows is asked for rows"};
  for (const std::int64_t row : selection.rows) {
    if (row < 0) return {ErrorCode::invalid_argument, str("there is no row ", row)};
  }
  return {};
}

float* RowShard::at(std::size_t slot) const {
  return blocks_[slot / rows_in_block_].get() + (slot % rows_in_block_) * stride_;
}

float* RowShard::touch(std::int64_t row) {
  if (const auto found = slots_.find(row); found != slots_.end()) return at(found->second);
  if (used_ == blocks_.size() * rows_in_block_) {
    // An allocation rarely fails: the kernel would rather kill a process later.
    if (blocks_.size() % blocks_between_looks == 0) {
      const std::size_t bytes = blocks_between_looks * rows_in_block_ * stride_ * sizeof(float);
      const auto left = available_memory();
      if (left && *left < static_cast<std::int64_t>(bytes)) throw std::bad_alloc();
    }
    blocks_.push_back(std::make_unique<float[]>(rows_in_block_ * stride_));
  }
  slots_.emplace(row, used_);
  float* const values = at(used_++);
  fill_initial(initial_, row, {values, static_cast<std::size_t>(width_)});
  return values;
}

void RowShard::read(const Selection& selection, std::int64_t from, std::int64_t to,
                    float* out) const {
  const auto width = static_cast<std::size_t>(width_);
  for (std::int64_t i = from; i < to; ++i) {
    const std::int64_t row = selection.rows[static_cast<std::size_t>(i)];
    float* const target = out + i * width_;
    const auto found = slots_.find(row);
    if (found == slots_.end()) {
      fill_initial(initial_, row, {target, width});
    } else {
      std::copy_n(at(found->second), width, target);
    }
  }
}

Status RowShard::reserve(const Selection& selection, std::int64_t from, std::int64_t to,
                         Places& places) {
  try {
    places.reserve(selection.rows.size());
    for (std::int64_t i = from; i < to; ++i) {
      places.push_back(touch(selection.rows[static_cast<std::size_t>(i)]));
    }
  } catch (const std::bad_alloc&) {
    return no_room();
  }
  return {};
}

Status RowShard::no_room() const {
  const std::size_t bytes = blocks_.size() * rows_in_block_ * stride_ * sizeof(float);
  const std::int64_t left = available_memory().value_or(0);
  return {ErrorCode::invalid_argument,
          str("its owner has no memory for more than the ", used_, " rows of ",
              stride_ * sizeof(float), " bytes that it holds, ", bytes, " bytes in all, with ",
              left, " bytes left on its host: more ranks or hosts would help")};
}

void RowShard::write(const Selection& /*selection*/, const Places& places, std::int64_t from,
                     std::int64_t to, const float* values) {
  for (std::int64_t i = from; i < to; ++i) {
    std::copy_n(values + i * width_, width_, places[static_cast<std::size_t>(i)]);
  }
}

void RowShard::add(const Selection& /*selection*/, const Places& places, std::int64_t from,
                   std::int64_t to, const float* delta, float factor) {
  for (std::int64_t i = from; i < to; ++i) {
    float* const values = places[static_cast<std::size_t>(i)];
    apply({values, static_cast<std::size_t>(width_)}, values + width_, width_, delta + i * width_,
          factor);
  }
}

void RowShard::visit(const Visitor& visitor) const {
  for (const auto& [row, slot] : slots_) {
    visitor(row, {at(slot), static_cast<std::size_t>(width_)});
  }
}

}  // namespace rueda
