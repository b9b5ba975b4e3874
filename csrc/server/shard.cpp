#include "server/shard.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "core/available_memory.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::size_t block_elements = 64 << 10;
constexpr std::size_t blocks_between_looks = 64;  // at the available memory: 16 MiB

constexpr std::uint64_t min_capacity = 1024;  // of an index, a power of two
constexpr std::chrono::microseconds owner_lock_limit{50};

}  // namespace

int row_owner(std::int64_t row, std::size_t ranks) {
  return static_cast<int>(((mixed(static_cast<std::uint64_t>(row)) >> 32) * ranks) >> 32);
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

Shard::Shard(AppliedRule rule, ShardMemory memory)
    : rule_(std::move(rule)), memory_(std::move(memory)) {}

std::shared_ptr<std::byte[]> Shard::allocate(std::size_t bytes) const {
  if (!memory_.allocate) return std::shared_ptr<std::byte[]>(new std::byte[bytes]());
  auto memory = memory_.allocate(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}

bool Shard::acquire() {
  if (is_busy_) return false;
  if (is_shared()) {
    const SharedPartLock lock(*memory_.part, owner_lock_limit);
    if (!lock) return false;
    memory_.part->is_busy.store(1);
  }
  is_busy_ = true;
  return true;
}

void Shard::release() {
  if (is_shared()) memory_.part->is_busy.store(0, std::memory_order_release);
  is_busy_ = false;
}

bool Shard::close_shared() {
  if (!is_shared() || generation_ != fork_generation()) return true;
  memory_.part->close();
  return memory_.part->is_torn.load() == 0;
}

DenseShard::DenseShard(std::int64_t begin, std::int64_t end, AppliedRule rule, ShardMemory memory)
    : Shard(std::move(rule), std::move(memory)),
      begin_(begin),
      count_(static_cast<std::size_t>(end - begin)),
      held_(allocate(std::max<std::size_t>(1, count_ * (1 + static_cast<std::size_t>(states()))) *
                     sizeof(float))),
      values_(reinterpret_cast<float*>(held_.get())),
      state_(states() == 0 ? nullptr : values_ + count_) {
  if (is_shared()) this->memory().part->values = where(values_);
}

Status DenseShard::check(const Selection& selection) const {
  const auto end = begin_ + static_cast<std::int64_t>(count_);
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
  const float* const first = values_ + (selection.begin - begin_);
  std::copy(first + from, first + to, out + from);
}

void DenseShard::write(const Selection& selection, const Places& /*places*/, std::int64_t from,
                       std::int64_t to, const float* values) {
  std::copy(values + from, values + to, values_ + (selection.begin - begin_) + from);
}

void DenseShard::add(const Selection& selection, const Places& /*places*/, std::int64_t from,
                     std::int64_t to, const float* delta, float factor) {
  const std::int64_t first = selection.begin - begin_ + from;
  rule().apply({values_ + first, static_cast<std::size_t>(to - from)},
               state_ == nullptr ? nullptr : state_ + first, static_cast<std::ptrdiff_t>(count_),
               delta + from, factor);
}

void DenseShard::visit(const Visitor& visitor) const {
  visitor(begin_, values());
}

void DenseShard::write_state(const Selection& selection, const Places& /*places*/,
                             std::int64_t from, std::int64_t to, const float* state) {
  for (int kind = 0; kind < states(); ++kind) {
    const float* const source = state + kind * selection.count;
    std::copy(source + from, source + to,
              state_ + static_cast<std::size_t>(kind) * count_ + (selection.begin - begin_) + from);
  }
}

void DenseShard::visit_state(const Visitor& visitor) const {
  if (states() > 0) visitor(begin_, {state_, count_ * static_cast<std::size_t>(states())});
}

RowShard::RowShard(std::int64_t width, InitialRows initial, AppliedRule rule, ShardMemory memory)
    : Shard(std::move(rule), std::move(memory)),
      width_(width),
      initial_(initial),
      stride_(static_cast<std::size_t>(width) * (1 + static_cast<std::size_t>(states()))),
      rows_in_block_(std::max<std::size_t>(1, block_elements / stride_)) {}

Status RowShard::check(const Selection& selection) const {
  const bool fits =
      selection.count >= 0 && selection.rows.size() == static_cast<std::size_t>(selection.count);
  if (!fits)
    return {ErrorCode::invalid_argument, "a request to a table of rows must name its rows"};
  for (const std::int64_t row : selection.rows) {
    if (row < 0) return {ErrorCode::invalid_argument, str("there is no row ", row)};
  }
  return {};
}

float* RowShard::touch(std::int64_t row) {
  if (const RowSlot* const found = index_.find(row)) return at(*found);
  if (used_ == blocks_.size() * rows_in_block_) add_block();
  if (2 * (used_ + 1) > index_.capacity()) grow_index();
  float* const values = reinterpret_cast<float*>(blocks_[used_ / rows_in_block_].get()) +
                        (used_ % rows_in_block_) * stride_;
  fill_initial(initial_, row, {values, static_cast<std::size_t>(width_)});
  index_.insert(row, where(values));
  ++used_;
  return values;
}

void RowShard::add_block() {
  // An allocation rarely fails: the kernel would rather kill a process later.
  if (blocks_.size() % blocks_between_looks == 0) {
    const std::size_t bytes = blocks_between_looks * rows_in_block_ * stride_ * sizeof(float);
    const auto left = available_memory();
    if (left && *left < static_cast<std::int64_t>(bytes)) throw std::bad_alloc();
  }
  blocks_.push_back(allocate(rows_in_block_ * stride_ * sizeof(float)));
}

void RowShard::grow_index() {
  const std::uint64_t capacity = std::max(min_capacity, 2 * index_.capacity());
  auto held = allocate(capacity * sizeof(RowSlot));
  RowIndex grown(reinterpret_cast<RowSlot*>(held.get()), capacity);
  for (std::uint64_t slot = 0; slot < index_.capacity(); ++slot) {
    const RowSlot& each = index_.at(slot);
    if (each.key != 0) grown.insert(RowIndex::row_of(each), each.where);
  }
  index_ = grown;
  held_index_ = std::move(held);
  if (!is_shared()) return;
  memory().part->index = where(held_index_.get());
  memory().part->capacity = capacity;
}

void RowShard::read(const Selection& selection, std::int64_t from, std::int64_t to,
                    float* out) const {
  const auto width = static_cast<std::size_t>(width_);
  for (std::int64_t i = from; i < to; ++i) {
    if (i + rows_ahead < to)
      index_.prefetch(selection.rows[static_cast<std::size_t>(i + rows_ahead)]);
    const std::int64_t row = selection.rows[static_cast<std::size_t>(i)];
    float* const target = out + i * width_;
    if (const RowSlot* const found = index_.find(row)) {
      std::copy_n(at(*found), width, target);
    } else {
      fill_initial(initial_, row, {target, width});
    }
  }
}

Status RowShard::reserve(const Selection& selection, std::int64_t from, std::int64_t to,
                         Places& places) {
  try {
    places.reserve(selection.rows.size());
    for (std::int64_t i = from; i < to; ++i) {
      if (i + rows_ahead < to)
        index_.prefetch(selection.rows[static_cast<std::size_t>(i + rows_ahead)]);
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
              left, " bytes left on its host: use more ranks or hosts")};
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
    rule().apply({values, static_cast<std::size_t>(width_)}, values + width_, width_,
                 delta + i * width_, factor);
  }
}

void RowShard::write_state(const Selection& /*selection*/, const Places& places, std::int64_t from,
                           std::int64_t to, const float* state) {
  const std::int64_t each = width_ * states();
  for (std::int64_t i = from; i < to; ++i) {
    std::copy_n(state + i * each, each, places[static_cast<std::size_t>(i)] + width_);
  }
}

void RowShard::visit_state(const Visitor& visitor) const {
  if (states() == 0) return;
  const auto width = static_cast<std::size_t>(width_);
  for (std::uint64_t slot = 0; slot < index_.capacity(); ++slot) {
    const RowSlot& each = index_.at(slot);
    if (each.key != 0) visitor(RowIndex::row_of(each), {at(each) + width, stride_ - width});
  }
}

void RowShard::visit(const Visitor& visitor) const {
  for (std::uint64_t slot = 0; slot < index_.capacity(); ++slot) {
    const RowSlot& each = index_.at(slot);
    if (each.key == 0) continue;
    visitor(RowIndex::row_of(each), {at(each), static_cast<std::size_t>(width_)});
  }
}

}  // namespace rueda
