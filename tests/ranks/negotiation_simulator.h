// Any number of negotiators without threads: messages wait in one queue per ordered pair of ranks,
// and a seeded generator chooses what happens next. Time stands still unless it is advanced.
//
// Each rank behaves like a coordinator: it keeps what it has submitted until a response answers it,
// and fails a test when a response executes an operation that it neither submitted nor may skip.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "plan/negotiator.h"

namespace rueda::test {

inline std::string text_of(const Response& response) {
  const Request& request = response.request;
  const Shape absent(response.absent.begin(), response.absent.end());
  return str(static_cast<int>(response.kind), " ", request.name, " ", name_of(request.collective),
             " ", name_of(request.dtype), " ", to_string(request.shape), " root ", request.root,
             " ", request.group, " extents ", to_string(response.first_extents), " absent ",
             to_string(absent), " ", response.status.to_string(), " rank ", response.rank,
             " memory ", request.output_bytes);
}

struct SimulatedRank {
  std::map<std::string, Request> pending;
  std::map<std::string, std::vector<Response>> answers;  // to its own submissions, in order
  std::vector<std::string> lists;                        // every list of responses as text
  std::vector<Response> warnings;
  std::vector<int> last_joined;  // one for each completed join
  int sent = 0;
  int received = 0;
};

class NegotiationSimulator {
 public:
  // `options`: for all ranks; `members` and `rank` are filled in.
  NegotiationSimulator(int size, NegotiatorOptions options, unsigned seed) : random_(seed) {
    options.members.clear();
    for (int rank = 0; rank < size; ++rank) options.members.push_back(rank);
    for (int rank = 0; rank < size; ++rank) {
      options.rank = rank;
      negotiators_.emplace_back(options);
    }
    ranks_.resize(static_cast<std::size_t>(size));
    dirty_.resize(static_cast<std::size_t>(size), false);
  }

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  Negotiator& negotiator(int rank) { return negotiators_[static_cast<std::size_t>(rank)]; }
  SimulatedRank& rank(int index) { return ranks_[static_cast<std::size_t>(index)]; }
  std::mt19937& random() { return random_; }
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  Status submit(int index, const std::vector<Request>& requests) {
    const Status status = negotiator(index).submit_group(requests, now_);
    if (status.ok()) {
      for (const Request& request : requests) {
        REQUIRE(rank(index).pending.emplace(request.name, request).second);
      }
    }
    touch(index);
    return status;
  }
  Status submit(int index, const Request& request) {
    return submit(index, std::vector<Request>{request});
  }
  void amend(int index, const std::string& name, const Status& error) {
    negotiator(index).amend(name, error);
    touch(index);
  }
  void join(int index) {
    negotiator(index).join();
    touch(index);
  }
  void leave(int index) {
    negotiator(index).leave();
    touch(index);
  }
  void retire(int index, bool waits) {
    const Leaving how = waits ? Leaving::later_with_all : Leaving::with_all;
    if (negotiator(index).leave(how)) touch(index);
  }
  void set_busy(int index, bool busy) {
    negotiator(index).set_load({.is_busy = busy});
    touch(index);
  }

  // Delivers a message, or flushes a rank whose state has changed; false if there is neither.
  bool step() {
    const std::size_t choices = waiting_.size() + touched_.size();
    if (choices == 0) return false;
    const std::size_t choice = random_() % choices;
    if (choice < waiting_.size()) {
      deliver(choice);
    } else {
      flush(take(touched_, choice - waiting_.size()));
    }
    return true;
  }
  void steps(int count) {
    while (count-- > 0 && step()) {
    }
  }
  void settle() {
    for (int left = 2'000'000; step(); --left) REQUIRE(left > 0);  // else it never comes to rest
  }
  // Delivers all messages now in flight, then flushes: one message latency. False at rest.
  bool round() {
    if (waiting_.empty() && touched_.empty()) return false;
    waiting_.clear();
    for (auto& [pair, queue] : std::exchange(queues_, {})) {
      for (const std::vector<std::byte>& message : queue) deliver(pair, message);
    }
    for (const int index : std::exchange(touched_, {})) flush(index);
    return true;
  }
  // Advances the clock, and wakes the ranks whose deadline has passed.
  void advance(double by) {
    now_ += seconds(by);
    for (int index = 0; index < size(); ++index) {
      const auto deadline = negotiator(index).next_deadline();
      if (deadline && *deadline <= now_) touch(index);
    }
  }

  // Requires that every rank saw the same lists, and, if `nothing_pending`, that nothing is open.
  void require_agreement(bool nothing_pending = true) {
    for (int index = 0; index < size(); ++index) {
      REQUIRE(rank(index).lists == rank(0).lists);
      if (nothing_pending) REQUIRE(rank(index).pending.empty());
      if (nothing_pending) REQUIRE_FALSE(negotiator(index).next_deadline());
    }
  }

  [[nodiscard]] int unknown_ids_messages() const { return unknown_ids_messages_; }
  [[nodiscard]] std::size_t largest_message() const { return largest_message_; }
  void reset_counts() {
    largest_message_ = 0;
    for (SimulatedRank& rank : ranks_) rank.sent = rank.received = 0;
  }
  std::vector<ResponseList> agreed;  // the lists as rank 0 saw them
  // Called with each message that is sent, before it is queued.
  std::function<void(int from, int to, std::vector<std::byte>& message)> on_send;

 private:
  using Pair = std::pair<int, int>;

  template <class T>
  static T take(std::vector<T>& items, std::size_t index) {
    std::swap(items[index], items.back());
    T item = std::move(items.back());
    items.pop_back();
    return item;
  }

  void touch(int index) {
    if (dirty_[static_cast<std::size_t>(index)]) return;
    dirty_[static_cast<std::size_t>(index)] = true;
    touched_.push_back(index);
  }

  void deliver(std::size_t choice) {
    const Pair pair = waiting_[choice];
    std::deque<std::vector<std::byte>>& queue = queues_[pair];
    const std::vector<std::byte> message = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) take(waiting_, choice);
    deliver(pair, message);
  }

  void deliver(Pair pair, const std::vector<std::byte>& message) {
    ++rank(pair.second).received;
    negotiator(pair.second).receive(pair.first, message, now_);
    collect(pair.second);
    touch(pair.second);
  }

  void flush(int index) {
    dirty_[static_cast<std::size_t>(index)] = false;
    negotiator(index).flush(now_);
    collect(index);
  }

  void collect(int index) {
    for (Negotiator::Outgoing& outgoing : negotiator(index).take_outgoing()) {
      if (on_send) on_send(index, outgoing.peer, outgoing.message);
      ++rank(index).sent;
      largest_message_ = std::max(largest_message_, outgoing.message.size());
      const auto kind = static_cast<MessageKind>(outgoing.message.front());
      if (kind == MessageKind::unknown_ids) ++unknown_ids_messages_;
      const Pair pair(index, outgoing.peer);
      std::deque<std::vector<std::byte>>& queue = queues_[pair];
      if (queue.empty()) waiting_.push_back(pair);
      queue.push_back(std::move(outgoing.message));
    }
    for (const ResponseList& list : negotiator(index).take_responses()) {
      if (index == 0) agreed.push_back(list);
      std::string text;
      for (const Response& response : list) {
        answer(index, response);
        text += text_of(response) + "\n";
      }
      rank(index).lists.push_back(std::move(text));
    }
  }

  void answer(int index, const Response& response) {
    SimulatedRank& self = rank(index);
    const std::string& name = response.request.name;
    switch (response.kind) {
      case ResponseKind::execute: {
        const auto& absent = response.absent;
        const bool excused = std::find(absent.begin(), absent.end(), index) != absent.end();
        REQUIRE(self.pending.erase(name) == (excused ? 0 : 1));
        if (!excused) self.answers[name].push_back(response);
        return;
      }
      case ResponseKind::error:
        std::erase_if(self.pending, [&](const auto& item) {
          const std::string& group = response.request.group;
          const bool fails = item.first == name || (!group.empty() && item.second.group == group);
          if (fails) self.answers[item.first].push_back(response);
          return fails;
        });
        return;
      case ResponseKind::warning: self.warnings.push_back(response); return;
      case ResponseKind::joined: self.last_joined.push_back(response.rank); return;
      case ResponseKind::left: self.pending.clear(); return;
    }
  }

  std::mt19937 random_;
  Time now_{};
  std::deque<Negotiator> negotiators_;
  std::vector<SimulatedRank> ranks_;
  std::map<Pair, std::deque<std::vector<std::byte>>> queues_;
  std::vector<Pair> waiting_;  // the queues that are not empty
  std::vector<int> touched_;   // ranks to be flushed
  std::vector<bool> dirty_;
  int unknown_ids_messages_ = 0;
  std::size_t largest_message_ = 0;
};

// Requests for tests.
inline Request allreduce_of(const std::string& name, Shape shape = {4}) {
  Request request;
  request.name = name;
  request.shape = std::move(shape);
  return request;
}
inline Request allgather_of(const std::string& name, std::int64_t rows) {
  Request request = allreduce_of(name, {rows, 3});
  request.collective = Collective::allgather;
  return request;
}
inline std::vector<Request> group_of(const std::string& group, int members) {
  std::vector<Request> requests;
  for (int i = 0; i < members; ++i) {
    requests.push_back(allreduce_of(str(group, ".", i)));
    requests.back().group = group;
    requests.back().group_size = members;
  }
  return requests;
}

}  // namespace rueda::test
