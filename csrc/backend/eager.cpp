#include "backend/eager.h"

#include <cstring>

#include "backend/ended_operation.h"
#include "backend/lengths.h"
#include "reduce/combine.h"

namespace rueda {

namespace {

void take(const Lane& lane, int member, std::byte* target, const std::byte* data,
          std::int64_t bytes) {
  if (bytes == 0) return;
  std::memcpy(target, data, static_cast<std::size_t>(bytes));
  if (member != lane.rank) lane.counters->bytes_taken.add(bytes);
}

std::unique_ptr<Operation> eager_result(const Lane& lane, const Reduction& reduction,
                                        const std::vector<Piece>& pieces, const std::byte* result) {
  for (const Piece& piece : pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.count) * size_of(reduction.dtype);
    if (bytes > 0) std::memcpy(piece.output, result, bytes);
    lane.counters->bytes_taken.add(static_cast<std::int64_t>(bytes));
    result += bytes;
  }
  return std::make_unique<EndedOperation>();
}

}  // namespace

// This rank's contribution is read from its tensor: the sent copy is moving to other ranks' caches.
std::unique_ptr<Operation> eager_allreduce(const Lane& lane, const Reduction& reduction,
                                           const std::vector<Piece>& pieces,
                                           const Contributions& contributions) {
  if (contributions.result() != nullptr) {
    return eager_result(lane, reduction, pieces, contributions.result());
  }
  const Combiner combine(combination_of(reduction));
  std::vector<const std::byte*> inputs(static_cast<std::size_t>(lane.size()));
  std::int64_t before = 0;
  for (const Piece& piece : pieces) {
    const std::int64_t bytes = piece.count * static_cast<std::int64_t>(size_of(reduction.dtype));
    for (int member = 0; member < lane.size(); ++member) {
      inputs[static_cast<std::size_t>(member)] =
          member == lane.rank ? piece.input : contributions.of(member) + before;
    }
    if (piece.count > 0) combine({&piece.output, 1}, inputs, piece.count, Stores::cached);
    before += bytes;
  }
  lane.counters->bytes_reduced.add(before);
  return std::make_unique<EndedOperation>();
}

std::unique_ptr<Operation> eager_reduce_scatter(const Lane& lane, const Reduction& reduction,
                                                std::byte* output,
                                                const std::vector<std::int64_t>& lengths,
                                                const Contributions& contributions) {
  const auto element = static_cast<std::int64_t>(size_of(reduction.dtype));
  const std::int64_t own = lengths[static_cast<std::size_t>(lane.rank)];
  const std::int64_t before = sum(lengths, lane.rank) * element;
  std::vector<const std::byte*> inputs;
  for (int member = 0; member < lane.size(); ++member) {
    inputs.push_back(contributions.of(member) + before);
  }
  const Combiner combine(combination_of(reduction));
  if (own > 0) combine({&output, 1}, inputs, own, Stores::cached);
  lane.counters->bytes_reduced.add(own * element);
  return std::make_unique<EndedOperation>();
}

std::unique_ptr<Operation> eager_allgather(const Lane& lane, std::byte* output,
                                           const std::vector<std::int64_t>& lengths,
                                           const Contributions& contributions) {
  for (int member = 0; member < lane.size(); ++member) {
    const std::int64_t bytes = lengths[static_cast<std::size_t>(member)];
    take(lane, member, output, contributions.of(member), bytes);
    output += bytes;
  }
  return std::make_unique<EndedOperation>();
}

std::byte* EagerRows::put(std::span<const std::int64_t> rows, std::byte* target) {
  std::memcpy(target, rows.data(), rows.size_bytes());
  return target + rows.size_bytes();
}

std::int64_t EagerRows::count_for(int rank) const {
  std::int64_t count = 0;
  std::memcpy(&count, contributed_ + bytes(rank), sizeof count);
  return count;
}

const std::byte* EagerRows::rows_for(int rank, std::size_t row_bytes) const {
  std::int64_t before = 0;
  for (int other = 0; other < rank; ++other) before += count_for(other);
  return contributed_ + bytes(ranks_) + static_cast<std::size_t>(before) * row_bytes;
}

std::unique_ptr<Operation> eager_alltoall(const Lane& lane, std::size_t row_bytes,
                                          const AllocateRows& allocate,
                                          const Contributions& contributions) {
  std::vector<std::int64_t> received;
  for (int member = 0; member < lane.size(); ++member) {
    received.push_back(EagerRows(contributions.of(member), lane.size()).count_for(lane.rank));
  }
  std::byte* target = allocate(received);
  for (int member = 0; member < lane.size(); ++member) {
    const EagerRows rows(contributions.of(member), lane.size());
    const std::int64_t bytes = rows.count_for(lane.rank) * static_cast<std::int64_t>(row_bytes);
    take(lane, member, target, rows.rows_for(lane.rank, row_bytes), bytes);
    target += bytes;
  }
  return std::make_unique<EndedOperation>();
}

std::unique_ptr<Operation> eager_broadcast(const Lane& lane, std::byte* data, std::int64_t bytes,
                                           int root, const Contributions& contributions) {
  if (lane.rank != root) take(lane, root, data, contributions.of(root), bytes);
  return std::make_unique<EndedOperation>();
}

}  // namespace rueda
