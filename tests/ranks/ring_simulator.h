// Executes the ring plans of all ranks on plain arrays, in random order: anything that the rules in
// plan/ring_plan.h allow may happen at any time, and nothing else.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "plan/ring_plan.h"

namespace rueda::test {

template <class T>
class RingSimulator {
 public:
  using Combine = std::function<T(T, T)>;

  // arrays[r] is rank r's data, changed in place.
  RingSimulator(std::vector<RingPlan> plans, std::vector<std::vector<T>>& arrays, Combine combine)
      : combine_(std::move(combine)) {
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      ranks_.push_back({std::move(plans[rank]), arrays[rank], {}, {}});
    }
  }

  // Throws std::logic_error if no rank can proceed, or if a receiver gets an unexpected message.
  void run(std::mt19937& random) {
    // In half of the runs, sends complete only when nothing else can happen.
    const bool late = random() % 2 == 0;
    for (;;) {
      auto possible = possible_among({Action::send, Action::transmit, Action::receive});
      if (!late || possible.empty()) {
        const auto completions = possible_among({Action::complete});
        possible.insert(possible.end(), completions.begin(), completions.end());
      }
      if (possible.empty()) break;
      const auto [rank, action] = possible[random() % possible.size()];
      perform(rank, action);
    }
    for (const Rank& rank : ranks_) {
      if (rank.completed != rank.plan.hops() || rank.received != rank.plan.hops()) {
        throw std::logic_error("the ring is stuck");
      }
    }
  }

  // The sum over all ranks.
  [[nodiscard]] std::int64_t elements_sent() const { return elements_sent_; }

 private:
  // A message is read from its sender's memory when it is transmitted, at any time between send and
  // receive. The send completes at any later time; until then, its memory must not change.
  enum class Action { send, transmit, complete, receive };

  struct Message {
    Segment segment;
    std::vector<T> elements;
    bool transmitted = false;
  };

  struct Rank {
    RingPlan plan;
    std::vector<T>& elements;
    std::deque<std::shared_ptr<Message>> inbox;   // not yet received
    std::deque<std::shared_ptr<Message>> outbox;  // not yet completed
    std::int64_t sent = 0;
    std::int64_t transmitted = 0;
    std::int64_t completed = 0;
    std::int64_t received = 0;
  };

  std::vector<std::pair<std::size_t, Action>> possible_among(
      std::initializer_list<Action> actions) {
    std::vector<std::pair<std::size_t, Action>> possible;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const Action action : actions) {
        if (can(rank, action)) possible.emplace_back(rank, action);
      }
    }
    return possible;
  }

  // The rules of plan/ring_plan.h.
  bool can(std::size_t index, Action action) {
    const Rank& rank = ranks_[index];
    switch (action) {
      case Action::send:
        return rank.sent < rank.plan.hops() && rank.sent - rank.plan.chunks() < rank.received;
      case Action::transmit: return rank.transmitted < rank.sent;
      case Action::complete: return rank.completed < rank.transmitted;
      case Action::receive: break;
    }
    if (rank.inbox.empty() || !rank.inbox.front()->transmitted) return false;
    if (!rank.plan.has_both_phases()) return true;
    const auto size = static_cast<std::int64_t>(ranks_.size());
    return rank.received - (size - 1) * rank.plan.chunks() < rank.completed;
  }

  void perform(std::size_t index, Action action) {
    Rank& rank = ranks_[index];
    switch (action) {
      case Action::send: return send(rank);
      case Action::transmit: {
        Message& message =
            *rank.outbox[static_cast<std::size_t>(rank.transmitted++ - rank.completed)];
        const std::span<T> span = part_of(rank, message.segment);
        message.elements.assign(span.begin(), span.end());
        message.transmitted = true;
        return;
      }
      case Action::complete: return complete(rank);
      case Action::receive: return receive(rank, rank.plan.hop(rank.received++));
    }
  }

  void send(Rank& rank) {
    const auto message = std::make_shared<Message>();
    message->segment = rank.plan.hop(rank.sent++).send;
    elements_sent_ += message->segment.count;
    rank.outbox.push_back(message);
    ranks_[static_cast<std::size_t>(rank.plan.next())].inbox.push_back(message);
  }

  void complete(Rank& rank) {
    const Message& message = *rank.outbox.front();
    const std::span<T> span = part_of(rank, message.segment);
    if (!std::equal(span.begin(), span.end(), message.elements.begin())) {
      throw std::logic_error("elements were overwritten while they were being sent");
    }
    rank.outbox.pop_front();
    ++rank.completed;
  }

  void receive(Rank& rank, const Hop& hop) {
    const std::shared_ptr<Message> message = rank.inbox.front();
    rank.inbox.pop_front();
    if (message->segment != hop.recv) throw std::logic_error("a message is not the expected one");
    const std::span<T> target = part_of(rank, hop.recv);
    for (std::size_t i = 0; i < target.size(); ++i) {
      target[i] = hop.reduces ? combine_(target[i], message->elements[i]) : message->elements[i];
    }
  }

  static std::span<T> part_of(Rank& rank, const Segment& segment) {
    if (segment.offset < 0 || segment.count < 0 ||
        segment.offset + segment.count > static_cast<std::int64_t>(rank.elements.size())) {
      throw std::logic_error("a segment lies outside of the array");
    }
    return std::span(rank.elements)
        .subspan(static_cast<std::size_t>(segment.offset), static_cast<std::size_t>(segment.count));
  }

  std::vector<Rank> ranks_;
  Combine combine_;
  std::int64_t elements_sent_ = 0;
};

}  // namespace rueda::test
