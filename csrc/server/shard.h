// The part of a table that one rank owns, or holds for another: values, what the update rule keeps
// of them, and how often they were added to.
//
// Used by the owner of the progress lock only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/status.h"
#include "rueda/server.h"

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
};

class Shard : public ShardView {
 public:
  explicit Shard(AppliedRule rule) : rule_(std::move(rule)) {}
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

  std::uint64_t version = 0;  // additions that are whole
  bool is_busy = false;       // a request is at work on it, and others wait

 protected:
  void apply(std::span<float> values, float* state, std::ptrdiff_t stride, const float* delta,
             float factor) const {
    rule_.rule->apply({.values = values,
                       .state = state,
                       .stride = stride,
                       .delta = {delta, values.size()},
                       .factor = factor,
                       .parameters = rule_.parameters});
  }
  [[nodiscard]] int states() const { return rule_.rule->states; }

 private:
  AppliedRule rule_;
};

// Elements [begin, end) of a table; zeros to begin with.
class DenseShard final : public Shard {
 public:
  DenseShard(std::int64_t begin, std::int64_t end, AppliedRule rule);

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

 private:
  const std::int64_t begin_;
  std::vector<float> values_;
  std::vector<float> state_;  // each kind as many as there are values
};

// Rows that were written or added to; the others have their initial values.
class RowShard final : public Shard {
 public:
  RowShard(std::int64_t width, InitialRows initial, AppliedRule rule);

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

 private:
  // Of the row, and behind its values its state; made where there is none. Throws std::bad_alloc.
  [[nodiscard]] float* touch(std::int64_t row);
  [[nodiscard]] Status no_room() const;
  [[nodiscard]] float* at(std::size_t slot) const;

  const std::int64_t width_;
  const InitialRows initial_;
  const std::size_t stride_;         // elements from one row to the next, with its state
  const std::size_t rows_in_block_;  // so that what is there never moves
  std::vector<std::unique_ptr<float[]>> blocks_;
  std::unordered_map<std::int64_t, std::size_t> slots_;
  std::size_t used_ = 0;
};

// Which of so many ranks owns a row, where the application does not say.
[[nodiscard]] int row_owner(std::int64_t row, std::size_t ranks);

// The initial values of a row: the same wherever and whenever they are asked for.
void fill_initial(const InitialRows& initial, std::int64_t row, std::span<float> values);

}  // namespace rueda
