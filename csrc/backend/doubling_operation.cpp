#include "backend/doubling_operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "reduce/reduce.h"

namespace rueda {

namespace {

bool is_under_way(const Ticket& ticket) {
  return ticket && !ticket->done;
}

}  // namespace

DoublingOperation::DoublingOperation(const Lane& lane, const Reduction& reduction, std::byte* data,
                                     std::int64_t count)
    : lane_(lane),
      reduction_(reduction),
      data_(data),
      count_(count),
      bytes_(static_cast<std::size_t>(count) * size_of(reduction.dtype)),
      exchanges_(bytes_ == 0 ? std::vector<Exchange>{}
                             : doubling_exchanges(lane.rank, lane.size())),
      incoming_(bytes_) {
  for (const Exchange& exchange : exchanges_) to_combine_ += exchange.combines ? 1 : 0;
}

void DoublingOperation::begin(const Exchange& exchange) {
  const int peer = lane_.world_rank(exchange.peer);
  if (exchange.receives) {
    const MutableBytes target(exchange.combines ? incoming_.data() : data_, bytes_);
    received_ = lane_.transport->recv(peer, lane_.tag, {&target, 1});
  }
  if (exchange.sends) {
    const ConstBytes source(data_, bytes_);
    sent_ = lane_.transport->send(peer, lane_.tag, {&source, 1});
    lane_.counters->messages_sent.add(1);
    lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(bytes_));
  }
}

bool DoublingOperation::advance() {
  bool moved = false;
  while (!done()) {
    const Exchange& exchange = exchanges_[next_];
    if (!sent_ && !received_) {
      begin(exchange);
      moved = true;
    }
    if (is_under_way(sent_) || is_under_way(received_)) return moved;
    for (const Ticket& ticket : {std::exchange(sent_, {}), std::exchange(received_, {})}) {
      if (ticket && !ticket->status.ok()) status_ = ticket->status;
    }
    if (status_.ok()) finish(exchange);
    moved = true;
  }
  return moved;
}

void DoublingOperation::finish(const Exchange& exchange) {
  ++next_;
  if (exchange.receives) {
    lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(bytes_));
  }
  if (!exchange.combines) return;
  if (exchange.peer < lane_.rank) {
    reduce(incoming_.data(), data_, count_, reduction_.dtype, reduction_.op);
    std::memcpy(data_, incoming_.data(), bytes_);
  } else {
    reduce(data_, incoming_.data(), count_, reduction_.dtype, reduction_.op);
  }
  lane_.counters->bytes_reduced.add(static_cast<std::int64_t>(bytes_));
  if (--to_combine_ == 0) finish_result();
}

// All ranks that hold the sum compute this from the same bits.
void DoublingOperation::finish_result() {
  if (reduction_.op == ReduceOp::average) {
    divide(data_, count_, reduction_.dtype, reduction_.divisor);
  }
  if (reduction_.postscale != 1.0) scale(data_, count_, reduction_.dtype, reduction_.postscale);
}

std::vector<int> DoublingOperation::awaited() const {
  if (!is_under_way(sent_) && !is_under_way(received_)) return {};
  return {lane_.world_rank(exchanges_[next_].peer)};
}

}  // namespace rueda
