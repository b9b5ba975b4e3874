#include "backend/alltoall_operation.h"

#include <algorithm>
#include <cstring>

#include "backend/tickets.h"

namespace rueda {

AlltoallOperation::AlltoallOperation(const Lane& lane, AlltoallInput input, AllocateRows allocate)
    : lane_(lane),
      input_(std::move(input)),
      allocate_(std::move(allocate)),
      received_rows_(static_cast<std::size_t>(lane.size()), 0) {
  exchange_counts();
}

void AlltoallOperation::exchange_counts() {
  for (int distance = 1; distance < lane_.size(); ++distance) {
    const auto peer = static_cast<std::size_t>((lane_.rank + distance) % lane_.size());
    const int world_rank = lane_.world_rank(static_cast<int>(peer));
    const MutableBytes count = std::as_writable_bytes(std::span(&received_rows_[peer], 1));
    counts_.push_back(lane_.transport->recv(world_rank, lane_.tag, {&count, 1}));
    const ConstBytes own = std::as_bytes(std::span(&input_.rows[peer], 1));
    sends_.push_back(lane_.transport->send(world_rank, lane_.tag, {&own, 1}));
    lane_.counters->messages_sent.add(1);
  }
  const auto self = static_cast<std::size_t>(lane_.rank);
  received_rows_[self] = input_.rows[self];
}

// Sends rows only once all counts have arrived. By then the receivers are about to know where their
// rows go, and need not buffer them.
void AlltoallOperation::exchange_rows() {
  counts_known_ = true;
  const std::vector<std::size_t> received = offsets_of(received_rows_);
  const std::vector<std::size_t> given = offsets_of(input_.rows);
  std::byte* output = allocate_(received_rows_);
  const auto self = static_cast<std::size_t>(lane_.rank);
  const std::size_t own_bytes = given[self + 1] - given[self];
  if (own_bytes > 0) std::memcpy(output + received[self], input_.data + given[self], own_bytes);
  // Starts with the next rank, so that not everyone sends to rank 0 first.
  for (int distance = 1; distance < lane_.size(); ++distance) {
    const auto peer = static_cast<std::size_t>((lane_.rank + distance) % lane_.size());
    const MutableBytes target(output + received[peer], received[peer + 1] - received[peer]);
    if (target.empty()) continue;
    rows_.push_back(
        lane_.transport->recv(lane_.world_rank(static_cast<int>(peer)), lane_.tag, {&target, 1}));
    lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(target.size()));
  }
  for (int distance = 1; distance < lane_.size(); ++distance) {
    const auto peer = static_cast<std::size_t>((lane_.rank + distance) % lane_.size());
    const ConstBytes rows(input_.data + given[peer], given[peer + 1] - given[peer]);
    if (rows.empty()) continue;
    sends_.push_back(
        lane_.transport->send(lane_.world_rank(static_cast<int>(peer)), lane_.tag, {&rows, 1}));
    lane_.counters->messages_sent.add(1);
    lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(rows.size()));
  }
}

// Byte offset of each rank's rows; the last element is the total.
std::vector<std::size_t> AlltoallOperation::offsets_of(
    const std::vector<std::int64_t>& rows) const {
  std::vector<std::size_t> offsets{0};
  for (const std::int64_t count : rows) {
    offsets.push_back(offsets.back() + static_cast<std::size_t>(count) * input_.row_bytes);
  }
  return offsets;
}

bool AlltoallOperation::all_done(const std::vector<Ticket>& tickets) {
  const bool all = rueda::all_done(tickets, status_);
  done_ = done_ || !status_.ok();
  return all;
}

bool AlltoallOperation::advance() {
  if (done_) return false;
  bool moved = false;
  if (!counts_known_ && all_done(counts_)) {
    exchange_rows();
    moved = true;
  }
  if (counts_known_ && all_done(rows_) && all_done(sends_)) done_ = true;
  return moved || done_;
}

std::vector<int> AlltoallOperation::awaited() const {
  return awaited_peers({&sends_, &counts_, &rows_});
}

}  // namespace rueda
