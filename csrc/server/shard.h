// The part of a table that one rank owns, or holds for another: the values, the update rule's state
// for them, and how often they were added to.
//
// Only for the owner of the progress lock.
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

// What a request is about: `count` elements from `begin` on, or the given rows.
struct Selection {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::span<const std::int64_t> rows{};  // of a table of rows; `count` of them
};

// The rule that adds to values, with its parameters.
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

// Where a shard keeps its values: by default in memory of its process.
struct ShardMemory {
  // Zeroed; null if there is none left. Keeps alive what is below.
  std::function<std::shared_ptr<std::byte[]>(std::size_t bytes)> allocate{};
  // What other ranks see of it, and where the memory begins that they see; null if they see none.
  SharedPart* part = nullptr;
  std::byte* base = nullptr;
};

class Shard : public ShardView {
 public:
  Shard(AppliedRule rule, ShardMemory memory);
  ~Shard() override = default;
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Ok if all of the selection is here.
  [[nodiscard]] virtual Status check(const Selection& selection) const = 0;
  // Elements per item: 1, or the width of a row.
  [[nodiscard]] virtual std::int64_t width() const = 0;

  // The addresses of a selection's items, in its order; for rows only.
  using Places = std::vector<float*>;

  // Makes room for items [from, to) and appends their places, so that later calls cannot fail.
  // Fails with InvalidArgument, with the sizes in the text.
  [[nodiscard]] virtual Status reserve(const Selection& selection, std::int64_t from,
                                       std::int64_t to, Places& places) = 0;
  // For items [from, to) of the selection, whose elements are contiguous in the buffer.
  virtual void read(const Selection& selection, std::int64_t from, std::int64_t to,
                    float* out) const = 0;
  // For reserved items.
  virtual void write(const Selection& selection, const Places& places, std::int64_t from,
                     std::int64_t to, const float* values) = 0;
  virtual void add(const Selection& selection, const Places& places, std::int64_t from,
                   std::int64_t to, const float* delta, float factor) = 0;
  // The rule's state: for a row all kinds side by side, for elements one kind after the other.
  virtual void write_state(const Selection& selection, const Places& places, std::int64_t from,
                           std::int64_t to, const float* state) = 0;
  // In the order of visit(); for elements all at once.
  virtual void visit_state(const Visitor& visitor) const = 0;
  // How many numbers the rule keeps for each value.
  [[nodiscard]] int states() const { return rule_.rule->states; }

  // For work on the shard, which may go on in pieces. False while other work has it, also for a
  // moment while another rank accesses it directly.
  [[nodiscard]] bool acquire();
  void release();
  [[nodiscard]] bool is_busy() const { return is_busy_; }
  [[nodiscard]] bool is_shared() const { return memory_.part != nullptr; }
  // Ends direct access by other ranks. A forked child, which does not have the shared memory,
  // leaves that to its parent. False if a rank has died during an access: then the values are
  // inconsistent.
  bool close_shared();

  // The number of complete additions.
  [[nodiscard]] std::uint64_t version() const { return version_of()->load(); }
  void count_addition() { version_of()->fetch_add(1); }
  // The least clock of all ranks.
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

// Elements [begin, end) of a table; initially zeros.
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
  float* const state_;  // for each kind one number per value; null without state
};

// Rows that were written or added to; other rows have their initial values.
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
  // The row's values, followed by its state; created if missing. Throws std::bad_alloc.
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
  const std::size_t rows_in_block_;  // blocks, so that rows never move
  std::vector<std::shared_ptr<std::byte[]>> blocks_;
  std::shared_ptr<std::byte[]> held_index_;
  RowIndex index_;
  std::size_t used_ = 0;  // rows
};

// Which of `ranks` ranks owns a row, if the application does not say.
[[nodiscard]] int row_owner(std::int64_t row, std::size_t ranks);

// The initial values of a row: always the same, on any rank.
void fill_initial(const InitialRows& initial, std::int64_t row, std::span<float> values);

}  // namespace rueda
