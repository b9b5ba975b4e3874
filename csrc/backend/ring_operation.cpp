#include "backend/ring_operation.h"

#include "core/strings.h"
#include "reduce/reduce.h"

namespace rueda {

namespace {

bool is_done(const Ticket& ticket) {
  return !ticket || ticket->done;
}

}  // namespace

RingOperation::RingOperation(const Lane& lane, RingPlan plan, std::byte* data,
                             std::size_t element_size, const Reduction* reduction)
    : lane_(lane),
      plan_(std::move(plan)),
      data_(data),
      element_size_(element_size),
      reduces_(reduction != nullptr),
      reduction_(reduction != nullptr ? *reduction : Reduction{}),
      progress_(plan_) {
  if (plan_.hops() == 0) {
    if (reduces_) finish_reduced(plan_.own_segment());
    done_ = true;
  }
  if (reduces_) staging_.resize(RingProgress::window);
}

bool RingOperation::advance() {
  bool moved = false;
  for (bool again = !done_; again;) {
    again = post_receives();
    again = post_sends() || again;
    again = take_receives() || again;
    again = take_sends() || again;
    again = again && !done_;
    moved = moved || again;
  }
  if (!done_ && progress_.is_over()) {
    done_ = true;
    moved = true;
  }
  return moved;
}

std::byte* RingOperation::staging(std::int64_t index) {
  return staging_[static_cast<std::size_t>(index % RingProgress::window)].data();
}

bool RingOperation::post_receives() {
  bool moved = false;
  while (progress_.may_post_receive()) {
    const std::int64_t index = progress_.receives_posted();
    const Hop hop = plan_.hop(index);
    Pending pending{hop, nullptr};
    if (hop.recv.count > 0) {
      std::byte* target = at(hop.recv);
      if (hop.reduces) {
        auto& slot = staging_[static_cast<std::size_t>(index % RingProgress::window)];
        if (slot.size() < bytes(hop.recv)) slot.resize(bytes(hop.recv));
        target = slot.data();
      }
      const MutableBytes span(target, bytes(hop.recv));
      pending.ticket =
          lane_.transport->recv(lane_.world_rank(plan_.previous()), lane_.tag, {&span, 1});
    }
    receiving_.push_back(std::move(pending));
    progress_.post_receive();
    moved = true;
  }
  return moved;
}

bool RingOperation::take_receives() {
  bool moved = false;
  while (!receiving_.empty() && is_done(receiving_.front().ticket)) {
    const Pending pending = std::move(receiving_.front());
    receiving_.pop_front();
    if (pending.ticket) {
      if (!pending.ticket->status.ok()) {
        fail(pending.ticket->status);
        return true;
      }
      const Segment& segment = pending.hop.recv;
      lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(bytes(segment)));
      if (pending.hop.reduces) {
        reduce(at(segment), staging(progress_.received()), segment.count, reduction_.dtype,
               reduction_.op);
        lane_.counters->bytes_reduced.add(static_cast<std::int64_t>(bytes(segment)));
      }
    }
    if (pending.hop.reduces && pending.hop.step == plan_.ranks() - 2) {
      finish_reduced(pending.hop.recv);
    }
    progress_.receive();
    if (progress_.received() % plan_.chunks() == 0) lane_.counters->ring_steps.add(1);
    moved = true;
  }
  return moved;
}

bool RingOperation::post_sends() {
  bool moved = false;
  while (progress_.may_post_send()) {
    const Hop hop = plan_.hop(progress_.sends_posted());
    Pending pending{hop, nullptr};
    if (hop.send.count > 0) {
      const ConstBytes span(at(hop.send), bytes(hop.send));
      pending.ticket = lane_.transport->send(lane_.world_rank(plan_.next()), lane_.tag, {&span, 1});
      lane_.counters->messages_sent.add(1);
      lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(span.size()));
    }
    sending_.push_back(std::move(pending));
    progress_.post_send();
    moved = true;
  }
  return moved;
}

bool RingOperation::take_sends() {
  bool moved = false;
  while (!sending_.empty() && is_done(sending_.front().ticket)) {
    const Ticket ticket = std::move(sending_.front().ticket);
    sending_.pop_front();
    if (ticket && !ticket->status.ok()) {
      fail(ticket->status);
      return true;
    }
    progress_.finish_send();
    moved = true;
  }
  return moved;
}

// The owner of a segment finishes it before anyone receives it, so all ranks hold the same bits.
void RingOperation::finish_reduced(const Segment& segment) {
  if (reduction_.op == ReduceOp::average) {
    divide(at(segment), segment.count, reduction_.dtype, reduction_.divisor);
  }
  if (reduction_.postscale != 1.0) {
    scale(at(segment), segment.count, reduction_.dtype, reduction_.postscale);
  }
}

void RingOperation::fail(const Status& status) {
  status_ = status;
  done_ = true;
}

std::vector<int> RingOperation::awaited() const {
  std::vector<int> ranks;
  if (progress_.received() < plan_.hops()) ranks.push_back(lane_.world_rank(plan_.previous()));
  if (!sending_.empty() && (ranks.empty() || plan_.next() != plan_.previous())) {
    ranks.push_back(lane_.world_rank(plan_.next()));
  }
  return ranks;
}

}  // namespace rueda
