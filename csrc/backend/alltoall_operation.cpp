#include "backend/alltoall_operation.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace rueda {

AlltoallOperation::AlltoallOperation(const Lane& lane, AlltoallInput input, AllocateRows allocate)
    : lane_(lane),
      input_(std::move(input)),
      allocate_(std::move(allocate)),
      received_rows_(static_cast<std::size_t>(lane.size()), 0) {
  send_counts_and_rows();
}

// Starting with the next rank, so that not everyone sends to rank 0 first.
void AlltoallOperation::send_counts_and_rows() {
  std::vector<std::size_t> offsets{0};
  for (const std::int64_t rows : input_.rows) {
    offsets.push_back(offsets.back() + static_cast<std::size_t>(rows) * input_.row_bytes);
  }
  for (int distance = 1; distance < lane_.size(); ++distance) {
    const auto peer = static_cast<std::size_t>((lane_.rank + distance) % lane_.size());
    const int world_rank = lane_.world_rank(static_cast<int>(peer));
    const MutableBytes count = std::as_writable_bytes(std::span(&received_rows_[peer], 1));
    counts_.push_back(lane_.transport->recv(world_rank, lane_.tag, {&count, 1}));
    const ConstBytes own = std::as_bytes(std::span(&input_.rows[peer], 1));
    sends_.push_back(lane_.transport->send(world_rank, lane_.tag, {&own, 1}));
    const ConstBytes rows(input_.data + offsets[peer], offsets[peer + 1] - offsets[peer]);
    if (!rows.empty()) {
      sends_.push_back(lane_.transport->send(world_rank, lane_.tag, {&rows, 1}));
      lane_.counters->messages_sent.add(1);
      lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(rows.size()));
    }
  }
  received_rows_[static_cast<std::size_t>(lane_.rank)] =
      input_.rows[static_cast<std::size_t>(lane_.rank)];
}

void AlltoallOperation::receive_rows() {
  counts_known_ = true;
  std::byte* output = allocate_(received_rows_);
  const std::byte* own_rows = input_.data;
  for (int rank = 0; rank < lane_.rank; ++rank) {
    own_rows +=
        static_cast<std::size_t>(input_.rows[static_cast<std::size_t>(rank)]) * input_.row_bytes;
  }
  for (int rank = 0; rank < lane_.size(); ++rank) {
    const auto rows = static_cast<std::size_t>(received_rows_[static_cast<std::size_t>(rank)]);
    const MutableBytes target(output, rows * input_.row_bytes);
    output += target.size();
    if (target.empty()) continue;
    if (rank == lane_.rank) {
      std::memcpy(target.data(), own_rows, target.size());
      continue;
    }
    rows_.push_back(lane_.transport->recv(lane_.world_rank(rank), lane_.tag, {&target, 1}));
    lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(target.size()));
  }
}

bool AlltoallOperation::all_done(const std::vector<Ticket>& tickets) {
  for (const Ticket& ticket : tickets) {
    if (!ticket->done) return false;
    if (!ticket->status.ok()) {
      status_ = ticket->status;
      done_ = true;
      return false;
    }
  }
  return true;
}

bool AlltoallOperation::advance() {
  if (done_) return false;
  bool moved = false;
  if (!counts_known_ && all_done(counts_)) {
    receive_rows();
    moved = true;
  }
  if (counts_known_ && all_done(rows_) && all_done(sends_)) done_ = true;
  return moved || done_;
}

std::vector<int> AlltoallOperation::awaited() const {
  std::set<int> ranks;
  for (const auto* tickets : {&sends_, &counts_, &rows_}) {
    for (const Ticket& ticket : *tickets) {
      if (!ticket->done) ranks.insert(ticket->peer);
    }
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace rueda
