// A part of a table that another rank of this host owns, as memory: what this rank can do there
// directly, without a message and without waking the owner.
//
// Creates nothing: only the owner creates rows that do not exist yet. What cannot be done
// immediately, because the owner is working on the part or somebody holds the mutex for long, is
// left to a request. Any thread may call any function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "rueda/server.h"
#include "server/row_index.h"
#include "server/shard.h"
#include "server/shared_part.h"

namespace rueda {

class DirectPart {
 public:
  struct Shape {
    std::int64_t begin = 0;  // of a dense part
    std::int64_t count = 0;
    std::int64_t width = 0;  // of rows; 0: a dense part
    InitialRows initial{};
  };
  // What multiplies an addition, and the staleness that it met; see AddOptions.
  struct Addition {
    float factor = 1;
    bool by_staleness = false;
    std::uint64_t seen = 0;
    std::uint64_t staleness = 0;  // output
  };

  // `base`: where the owner's memory is mapped here. `keep` lives as long as this.
  DirectPart(SharedPart& part, std::byte* base, Shape shape, AppliedRule rule,
             std::shared_ptr<const void> keep)
      : keep_(std::move(keep)),
        part_(part),
        base_(reinterpret_cast<std::uintptr_t>(base)),
        shape_(shape),
        rule_(std::move(rule)),
        states_(rule_.rule->states) {}

  // Each returns whether it was done; if not, ask the owner.

  // `clock`: only if all ranks have ticked this often. Sets the version that was read.
  [[nodiscard]] bool read(std::int64_t begin, std::span<float> out, std::int64_t clock,
                          std::uint64_t& version) const;
  [[nodiscard]] bool write(std::int64_t begin, std::span<const float> values) const;
  [[nodiscard]] bool add(std::int64_t begin, std::span<const float> delta,
                         Addition& addition) const;

  // For the rows at these positions; their elements are at the same positions in `out`, `values` or
  // `delta`.
  struct Rows {
    std::span<const std::int64_t> rows;
    std::span<const std::int64_t> positions;
    [[nodiscard]] std::int64_t at(std::size_t i) const {
      return rows[static_cast<std::size_t>(positions[i])];
    }
  };
  [[nodiscard]] bool read_rows(const Rows& rows, float* out, std::int64_t clock,
                               std::uint64_t& version) const;
  [[nodiscard]] bool write_rows(const Rows& rows, const float* values) const;
  [[nodiscard]] bool add_rows(const Rows& rows, const float* delta, Addition& addition) const;

 private:
  class Work;

  [[nodiscard]] float* floats(std::uint64_t where) const {
    return reinterpret_cast<float*>(base_ + where);
  }
  [[nodiscard]] RowIndex index() const {
    return part_.capacity == 0
               ? RowIndex()
               : RowIndex(reinterpret_cast<RowSlot*>(base_ + part_.index), part_.capacity);
  }
  // The places of all rows if all exist; otherwise none.
  [[nodiscard]] bool find_all(const Rows& rows, std::vector<float*>& places) const;
  [[nodiscard]] float factor_of(Addition& addition) const;

  const std::shared_ptr<const void> keep_;
  SharedPart& part_;
  const std::uintptr_t base_;
  const Shape shape_;
  const AppliedRule rule_;
  const int states_;
};

}  // namespace rueda
