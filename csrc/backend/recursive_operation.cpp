#include "backend/recursive_operation.h"

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

RecursiveOperation::RecursiveOperation(const Lane& lane, const Reduction& reduction,
                                       std::byte* data, RecursivePlan plan)
    : lane_(lane), reduction_(reduction), data_(data), plan_(std::move(plan)) {
  std::size_t longest = 0;
  for (const Exchange& exchange : plan_.exchanges) {
    if (exchange.combines) longest = std::max(longest, bytes(exchange.receives));
  }
  incoming_.resize(longest);
}

std::size_t RecursiveOperation::bytes(const Segment& segment) const {
  return static_cast<std::size_t>(segment.count) * size_of(reduction_.dtype);
}

std::byte* RecursiveOperation::at(const Segment& segment) const {
  return data_ + static_cast<std::size_t>(segment.offset) * size_of(reduction_.dtype);
}

void RecursiveOperation::begin(const Exchange& exchange) {
  const int peer = lane_.world_rank(exchange.peer);
  if (exchange.receives.count > 0) {
    std::byte* const into = exchange.combines ? incoming_.data() : at(exchange.receives);
    const MutableBytes target(into, bytes(exchange.receives));
    received_ = lane_.transport->recv(peer, lane_.tag, {&target, 1});
  }
  if (exchange.sends.count > 0) {
    const ConstBytes source(at(exchange.sends), bytes(exchange.sends));
    sent_ = lane_.transport->send(peer, lane_.tag, {&source, 1});
    lane_.counters->messages_sent.add(1);
    lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(source.size()));
  }
}

bool RecursiveOperation::advance() {
  bool moved = false;
  while (!done()) {
    const Exchange& exchange = plan_.exchanges[next_];
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

void RecursiveOperation::finish(const Exchange& exchange) {
  lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(bytes(exchange.receives)));
  if (exchange.combines && exchange.receives.count > 0) combine(exchange);
  if (++next_ == plan_.reduced_after) finish_result();
}

void RecursiveOperation::combine(const Exchange& exchange) {
  std::byte* const own = at(exchange.receives);
  const std::int64_t count = exchange.receives.count;
  if (exchange.peer < lane_.rank) {
    reduce(incoming_.data(), own, count, reduction_.dtype, reduction_.op);
    std::memcpy(own, incoming_.data(), bytes(exchange.receives));
  } else {
    reduce(own, incoming_.data(), count, reduction_.dtype, reduction_.op);
  }
  lane_.counters->bytes_reduced.add(static_cast<std::int64_t>(bytes(exchange.receives)));
}

// With doubling, all ranks that hold the sum compute this from the same bits.
void RecursiveOperation::finish_result() {
  std::byte* const result = at(plan_.own);
  const std::int64_t count = plan_.own.count;
  if (reduction_.op == ReduceOp::average) {
    divide(result, count, reduction_.dtype, reduction_.divisor);
  }
  if (reduction_.postscale != 1.0) scale(result, count, reduction_.dtype, reduction_.postscale);
}

std::vector<int> RecursiveOperation::awaited() const {
  if (!is_under_way(sent_) && !is_under_way(received_)) return {};
  return {lane_.world_rank(plan_.exchanges[next_].peer)};
}

}  // namespace rueda
