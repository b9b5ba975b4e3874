// Collectives for which every rank already holds all contributions, see EagerBuffers: they only
// have to be combined or copied. The result is bitwise the same as if the ranks had met in a
// channel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"

namespace rueda {

// What the members of a process set contribute to a batch.
class Contributions {
 public:
  Contributions() = default;
  // The contribution of each member begins at `offset` of what it sent along.
  Contributions(std::span<const std::byte* const> sent, std::size_t offset)
      : sent_(sent), offset_(offset) {}

  // For an allreduce that has already been combined: the result instead of the contributions.
  static Contributions combined(const std::byte* result, std::size_t offset) {
    Contributions contributions;
    contributions.result_ = result + offset;
    return contributions;
  }

  // Whether they are available.
  explicit operator bool() const { return !sent_.empty() || result_ != nullptr; }
  [[nodiscard]] const std::byte* result() const { return result_; }  // null: not combined
  [[nodiscard]] const std::byte* of(int member) const {
    return sent_[static_cast<std::size_t>(member)] + offset_;
  }

 private:
  std::span<const std::byte* const> sent_;
  std::size_t offset_ = 0;
  const std::byte* result_ = nullptr;
};

// A rank's contribution to an alltoall: the number of rows for each rank, then the rows.
class EagerRows {
 public:
  [[nodiscard]] static std::size_t bytes(int ranks) {
    return static_cast<std::size_t>(ranks) * sizeof(std::int64_t);
  }
  // Whether `rows` bytes of rows fit into `room`.
  [[nodiscard]] static bool fit(int ranks, std::size_t rows, std::size_t room) {
    return bytes(ranks) <= room && rows <= room - bytes(ranks);
  }
  // Returns where the rows are to be written.
  static std::byte* put(std::span<const std::int64_t> rows, std::byte* target);

  // `contributed`: by one of `ranks` ranks.
  EagerRows(const std::byte* contributed, int ranks) : contributed_(contributed), ranks_(ranks) {}
  [[nodiscard]] std::int64_t count_for(int rank) const;
  [[nodiscard]] const std::byte* rows_for(int rank, std::size_t row_bytes) const;

 private:
  const std::byte* contributed_;
  int ranks_;
};

// Like Backend's functions of the same names, but done when they return. Every member contributes.
// Contributed: the pieces' elements, one piece after the other.
std::unique_ptr<Operation> eager_allreduce(const Lane& lane, const Reduction& reduction,
                                           const std::vector<Piece>& pieces,
                                           const Contributions& contributions);
// Contributed: the elements for all ranks, in rank order.
std::unique_ptr<Operation> eager_reduce_scatter(const Lane& lane, const Reduction& reduction,
                                                std::byte* output,
                                                const std::vector<std::int64_t>& lengths,
                                                const Contributions& contributions);
// Contributed: lengths[member] bytes.
std::unique_ptr<Operation> eager_allgather(const Lane& lane, std::byte* output,
                                           const std::vector<std::int64_t>& lengths,
                                           const Contributions& contributions);
// Contributed: see EagerRows.
std::unique_ptr<Operation> eager_alltoall(const Lane& lane, std::size_t row_bytes,
                                          const AllocateRows& allocate,
                                          const Contributions& contributions);
// Contributed by the root: `bytes` bytes.
std::unique_ptr<Operation> eager_broadcast(const Lane& lane, std::byte* data, std::int64_t bytes,
                                           int root, const Contributions& contributions);

}  // namespace rueda
