#include "backend/tree_operation.h"

#include <algorithm>

#include "plan/rank_list.h"
#include "reduce/reduce.h"

namespace rueda {

TreeOperation::TreeOperation(const Lane& lane, int tree, const Reduction& reduction,
                             std::byte* data, std::int64_t count, std::int64_t chunk)
    : lane_(lane),
      reduction_(reduction),
      data_(data),
      count_(count),
      chunk_(std::clamp<std::int64_t>(count, 1, chunk)),
      element_(size_of(reduction.dtype)),
      place_(place_in_tree(tree, lane.rank, lane.size())),
      progress_(place_, (count + chunk_ - 1) / chunk_),
      done_(count == 0) {
  from_parent_.peer = to_parent_.peer = place_.parent;
  const auto elements_at_once =
      static_cast<std::size_t>(std::min(count_, TreeProgress::window * chunk_));
  for (std::size_t child = 0; child < place_.children.size(); ++child) {
    from_children_[child].peer = to_children_[child].peer = place_.children[child];
    staging_[child].resize(elements_at_once * element_);
  }
}

std::int64_t TreeOperation::elements(std::int64_t chunk) const {
  return std::min(chunk_, count_ - chunk * chunk_);
}

std::size_t TreeOperation::bytes(std::int64_t chunk) const {
  return static_cast<std::size_t>(elements(chunk)) * element_;
}

std::byte* TreeOperation::at(std::int64_t chunk) const {
  return data_ + static_cast<std::size_t>(chunk * chunk_) * element_;
}

std::byte* TreeOperation::staging(std::size_t child, std::int64_t chunk) {
  const auto slot = static_cast<std::size_t>(chunk % TreeProgress::window);
  return staging_[child].data() + slot * static_cast<std::size_t>(chunk_) * element_;
}

void TreeOperation::send(Queue& queue, TreeProgress::Flow& flow) {
  const ConstBytes source(at(flow.posted()), bytes(flow.posted()));
  flow.post();
  queue.tickets.push_back(
      lane_.transport->send(lane_.world_rank(queue.peer), lane_.tag, {&source, 1}));
  lane_.counters->messages_sent.add(1);
  lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(source.size()));
}

void TreeOperation::receive(Queue& queue, TreeProgress::Flow& flow, std::byte* target) {
  const MutableBytes span(target, bytes(flow.posted()));
  flow.post();
  queue.tickets.push_back(
      lane_.transport->recv(lane_.world_rank(queue.peer), lane_.tag, {&span, 1}));
  lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(span.size()));
}

bool TreeOperation::take(Queue& queue) {
  if (queue.tickets.empty() || !queue.tickets.front()->done || done_) return false;
  status_ = queue.tickets.front()->status;
  done_ = !status_.ok();
  queue.tickets.pop_front();
  return !done_;
}

bool TreeOperation::advance() {
  bool moved = false;
  for (bool again = !done_; again; moved = moved || again) {
    again = move_up();
    again = move_down() || again;
    done_ = done_ || progress_.is_over();
    if (done_) return true;
  }
  return moved;
}

bool TreeOperation::move_up() {
  bool moved = false;
  for (std::size_t child = 0; child < place_.children.size(); ++child) {
    TreeProgress::Flow& flow = progress_.from_child(child);
    for (; progress_.may_receive_from_child(child); moved = true) {
      receive(from_children_[child], flow, staging(child, flow.posted()));
    }
    for (; progress_.may_combine(child) && take(from_children_[child]); moved = true) {
      combine(child);
      flow.finish();
      const bool is_last = child + 1 == place_.children.size();
      if (is_last && place_.is_root()) finish_result(flow.over() - 1);
    }
  }
  for (; progress_.may_send_to_parent(); moved = true) send(to_parent_, progress_.to_parent());
  for (; take(to_parent_); moved = true) progress_.to_parent().finish();
  return moved;
}

bool TreeOperation::move_down() {
  bool moved = false;
  TreeProgress::Flow& from = progress_.from_parent();
  for (; progress_.may_receive_from_parent(); moved = true) {
    receive(from_parent_, from, at(from.posted()));
  }
  for (; take(from_parent_); moved = true) from.finish();
  for (std::size_t child = 0; child < place_.children.size(); ++child) {
    TreeProgress::Flow& to = progress_.to_child(child);
    for (; progress_.may_send_to_child(child); moved = true) send(to_children_[child], to);
    for (; take(to_children_[child]); moved = true) to.finish();
  }
  return moved;
}

void TreeOperation::combine(std::size_t child) {
  const std::int64_t chunk = progress_.from_child(child).over();
  reduce(at(chunk), staging(child, chunk), elements(chunk), reduction_.dtype, reduction_.op);
  lane_.counters->bytes_reduced.add(static_cast<std::int64_t>(bytes(chunk)));
}

void TreeOperation::finish_result(std::int64_t chunk) {
  if (reduction_.op == ReduceOp::average) {
    divide(at(chunk), elements(chunk), reduction_.dtype, reduction_.divisor);
  }
  if (reduction_.postscale != 1.0) {
    scale(at(chunk), elements(chunk), reduction_.dtype, reduction_.postscale);
  }
}

// A child's chunks may have arrived and be waiting for those of the child before it.
std::vector<int> TreeOperation::awaited() const {
  std::vector<int> ranks;
  for (const Queue* queue : {&from_children_[0], &from_children_[1], &to_children_[0],
                             &to_children_[1], &to_parent_, &from_parent_}) {
    const bool waits = !queue->tickets.empty() && !queue->tickets.front()->done;
    if (waits) add_ranks(ranks, {lane_.world_rank(queue->peer)});
  }
  return ranks;
}

}  // namespace rueda
