#include "backend/broadcast_operation.h"

#include <algorithm>

namespace rueda {

namespace {

// Number of chunks whose receives are posted ahead.
constexpr std::int64_t chunks_ahead = 4;

}  // namespace

BroadcastOperation::BroadcastOperation(const Lane& lane, std::byte* data, std::int64_t bytes,
                                       int root)
    : lane_(lane),
      data_(data),
      bytes_(bytes),
      chunks_((bytes + lane.chunk_bytes - 1) / lane.chunk_bytes) {
  const int size = lane_.size();
  const int distance = (lane_.rank - root + size) % size;
  next_ = distance == size - 1 ? -1 : lane_.world_rank((lane_.rank + 1) % size);
  previous_ = distance == 0 ? -1 : lane_.world_rank((lane_.rank + size - 1) % size);
  if (previous_ < 0) received_ = receives_posted_ = chunks_;
  if (next_ < 0) sent_ = sends_posted_ = chunks_;
  done_ = received_ == chunks_ && sent_ == chunks_;
}

std::size_t BroadcastOperation::chunk_size(std::int64_t chunk) const {
  return static_cast<std::size_t>(std::min(lane_.chunk_bytes, bytes_ - chunk * lane_.chunk_bytes));
}

std::int64_t BroadcastOperation::take(std::deque<Ticket>& tickets) {
  std::int64_t completed = 0;
  while (!tickets.empty() && tickets.front()->done) {
    if (!tickets.front()->status.ok()) {
      status_ = tickets.front()->status;
      done_ = true;
      return completed;
    }
    tickets.pop_front();
    ++completed;
  }
  return completed;
}

bool BroadcastOperation::advance() {
  bool moved = false;
  for (bool again = !done_; again; moved = moved || again) {
    again = false;
    for (; receives_posted_ < std::min(chunks_, received_ + chunks_ahead); ++receives_posted_) {
      const MutableBytes span(data_ + receives_posted_ * lane_.chunk_bytes,
                              chunk_size(receives_posted_));
      receiving_.push_back(lane_.transport->recv(previous_, lane_.tag, {&span, 1}));
      lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(span.size()));
      again = true;
    }
    for (; sends_posted_ < received_; ++sends_posted_) {
      const ConstBytes span(data_ + sends_posted_ * lane_.chunk_bytes, chunk_size(sends_posted_));
      sending_.push_back(lane_.transport->send(next_, lane_.tag, {&span, 1}));
      lane_.counters->messages_sent.add(1);
      lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(span.size()));
      again = true;
    }
    const std::int64_t arrived = take(receiving_);
    const std::int64_t gone = take(sending_);
    received_ += arrived;
    sent_ += gone;
    if (gone > 0 && sent_ == chunks_) lane_.counters->ring_steps.add(1);
    again = !done_ && (again || arrived > 0 || gone > 0);
    done_ = done_ || (received_ == chunks_ && sent_ == chunks_);
  }
  return moved || done_;
}

std::vector<int> BroadcastOperation::awaited() const {
  std::vector<int> ranks;
  if (received_ < chunks_) ranks.push_back(previous_);
  if (!sending_.empty()) ranks.push_back(next_);
  return ranks;
}

}  // namespace rueda
