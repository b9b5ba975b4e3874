// The part of a table that one rank owns, or holds for another: values, what the update rule keeps
// of them, and how often they were added to.
//
// Used by the owner of the progress lock only.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/fork.h"
#include "core/status.h"
#include "rueda/server.h"
#include "server/row_index.h"
#include "server/shared_part.h"

namespace rueda {

// What a request is about: `count` elements from `begin` on, or these rows.
struct Selection {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::span<const std::int64_t> rows{};  // of a table of rows; `count` of them
};

// What adds to values, and how.
struct AppliedRule {
  const UpdateRule* rule = nullptr;
  std::vector<double> parameters{};

  void apply(std::span<float> values, float* state, std::ptrdiff_t stride, const float* delta,
             float factor) const {
    rule->apply({.values = values,
                 .state = state,
                 .stride = stride,
                 .delta = {delta, values.size()},
                 .factor = factor,
                 .parameters = parameters});
  }
};

// Where a shard has its values: by default in memory of its process.
struct ShardMemory {
  // Zeroed; null where there is none left. Keeps alive what is below.
  std::function<std::shared_ptr<std::byte[]>(std::size_t bytes)> allocate{};
  // What others see of it, and where the memory begins that they see; null where they do not.
  SharedPart* part = nullptr;
  std::byte* base = nullptr;
};

class Shard : public ShardView {
 public:
  Shard(AppliedRule rule, ShardMemory memory);
  ~Shard() override = default;
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Ok where all of the selection is here.
  [[nodiscard]] virtual Status check(const Selection& selection) const = 0;
  // Elements of one item: 1, or those of a row.
  [[nodiscard]] virtual std::int64_t width() const = 0;

  // Where the items of a selection are, in its order; for rows only.
  using Places = std::vector<float*>;

  // Makes room for items [from, to) and appends where they are: what follows cannot fail then.
  // Fails with InvalidArgument, which tells the sizes.
  [[nodiscard]] virtual Status reserve(const Selection& selection, std::int64_t from,
                                       std::int64_t to, Places& places) = 0;
  // On items [from, to) of the selection, whose elements lie in the buffer one after the other.
  virtual void read(const Selection& selection, std::int64_t from, std::int64_t to,
                    float* out) const = 0;
  // Of what has been reserved.
  virtual void write(const Selection& selection, const Places& places, std::int64_t from,
                     std::int64_t to, const float* values) = 0;
  virtual void add(const Selection& selection, const Places& places, std::int64_t from,
                   std::int64_t to, const float* delta, float factor) = 0;
  // What the rule keeps: of a row all kinds side by side, of elements one kind after the other.
  virtual void write_state(const Selection& selection, const Places& places, std::int64_t from,
                           std::int64_t to, const float* state) = 0;
  // In the order of visit(); of elements all at once.
  virtual void visit_state(const Visitor& visitor) const = 0;
  // Numbers that the rule keeps for each value.
  [[nodiscard]] int states() const { return rule_.rule->states; }

  // For work on it, which may go on in pieces; false where other work has it: also for a moment
  // where another rank is at work on it by itself.
  [[nodiscard]] bool acquire();
  void release();
  [[nodiscard]] bool is_busy() const { return is_busy_; }
  [[nodiscard]] bool is_shared() const { return memory_.part != nullptr; }
  // No other rank works on it by itself any more; a forked child, which does not have what is
  // shared, leaves that to its parent. False where one has ended in the middle of that:
  // then the values are nobody's state.
  bool close_shared();

  // Additions that are whole.
  [[nodiscard]] std::uint64_t version() const { return version_of()->load(); }
  void count_addition() { version_of()->fetch_add(1); }
  // Of all ranks.
  void tell_least_clock(std::int64_t clock) {
    if (is_shared()) memory_.part->least_clock.store(clock, std::memory_order_release);
  }

 protected:
  [[nodiscard]] const AppliedRule& rule() const { return rule_; }
  [[nodiscard]] const ShardMemory& memory() const { return memory_; }
  // Throws std::bad_alloc.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(std::size_t bytes) const;
  [[nodiscard]] std::uint64_t where(const void* address) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - memory_.base);
  }

 private:
  [[nodiscard]] std::atomic<std::uint64_t>* version_of() const {
    return is_shared() ? &memory_.part->version : &version_;
  }

  AppliedRule rule_;
  ShardMemory memory_;
  const int generation_ = fork_generation();
  bool is_busy_ = false;
  mutable std::atomic<std::uint64_t> version_{0};
};

// Elements [begin, end) of a table; zeros to begin with.
class DenseShard final : public Shard {
 public:
  DenseShard(std::int64_t begin, std::int64_t end, AppliedRule rule, ShardMemory memory = {});
  ~DenseShard() override { close_shared(); }

  [[nodiscard]] Status check(const Selection& selection) const override;
  [[nodiscard]] std::int64_t width() const override { return 1; }
  [[nodiscard]] bool has_rows() const override { return false; }
  [[nodiscard]] Status reserve(const Selection& selection, std::int64_t from, std::int64_t to,
                               Places& places) override;
  void read(const Selection& selection, std::int64_t from, std::int64_t to,
            float* out) const override;
  void write(const Selection& selection, const Places& places, std::int64_t from, std::int64_t to,
             const float* values) override;
  void add(const Selection& selection, const Places& places, std::int64_t from, std::int64_t to,
           const float* delta, float factor) override;
  void visit(const Visitor& visitor) const override;
  void write_state(const Selection& selection, const Places& places, std::int64_t from,
                   std::int64_t to, const float* state) override;
  void visit_state(const Visitor& visitor) const override;

 private:
  [[nodiscard]] std::span<float> values() const { return {values_, count_}; }

  const std::int64_t begin_;
  const std::size_t count_;
  const std::shared_ptr<std::byte[]> held_;
  float* const values_;
  float* const state_;  // each kind as many as there are values; null without
};

// Rows that were written or added to; the others have their initial values.
class RowShard final : public Shard {
 public:
  RowShard(std::int64_t width, InitialRows initial, AppliedRule rule, ShardMemory memory = {});
  ~RowShard() override { close_shared(); }

  [[nodiscard]] Status check(const Selection& selection) const override;
  [[nodiscard]] std::int64_t width() const override { return width_; }
  [[nodiscard]] bool has_rows() const override { return true; }
  [[nodiscard]] Status reserve(const Selection& selection, std::int64_t from, std::int64_t to,
                               Places& places) override;
  void read(const Selection& selection, std::int64_t from, std::int64_t to,
            float* out) const override;
  void write(const Selection& selection, const Places& places, std::int64_t from, std::int64_t to,
             const float* values) override;
  void add(const Selection& selection, const Places& places, std::int64_t from, std::int64_t to,
           const float* delta, float factor) override;
  void visit(const Visitor& visitor) const override;
  void write_state(const Selection& selection, const Places& places, std::int64_t from,
                   std::int64_t to, const float* state) override;
  void visit_state(const Visitor& visitor) const override;

 private:
  // Of the row, and behind its values its state; made where there is none. Throws std::bad_alloc.
  [[nodiscard]] float* touch(std::int64_t row);
  void add_block();
  void grow_index();
  [[nodiscard]] Status no_room() const;
  [[nodiscard]] float* at(const RowSlot& slot) const {
    return reinterpret_cast<float*>(reinterpret_cast<std::uintptr_t>(memory().base) + slot.where);
  }

  const std::int64_t width_;
  const InitialRows initial_;
  const std::size_t stride_;         // elements from one row to the next, with its state
  const std::size_t rows_in_block_;  // so that what is there never moves
  std::vector<std::shared_ptr<std::byte[]>> blocks_;
  std::shared_ptr<std::byte[]> held_index_;
  RowIndex index_;
  std::size_t used_ = 0;  // rows
};

// Which of so many ranks owns a row, where the application does not say.
[[nodiscard]] int row_owner(std::int64_t row, std::size_t ranks);

// The initial values of a row: the same wherever and whenever they are asked for.
void fill_initial(const InitialRows& initial, std::int64_t row, std::span<float> values);

}  // namespace rueda
