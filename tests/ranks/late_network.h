// A transport that delays and reorders everything as much as the contract of Transport allows, and
// fails a test that breaks the contract.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace rueda::test {

inline bool overlap(ConstBytes left, ConstBytes right) {
  return left.data() < right.data() + right.size() && right.data() < left.data() + left.size();
}

// All ranks' transports in one thread. A message moves when it is chosen, straight from the
// sender's memory, which the transport owns until the send is acknowledged, after the receive.
class Network {
 public:
  Network(int size, unsigned seed) : random_(seed), size_(size) {}

  struct Half {
    int rank;
    int peer;
    Tag tag;
    MutableBytes memory;  // only read if this is a send
    Ticket ticket;
  };

  Ticket add(std::deque<Half>& halves, int rank, int peer, Tag tag, MutableBytes memory) {
    for (const Half& other : receives_) {
      if (other.rank == rank) REQUIRE_FALSE(overlap(memory, other.memory));
    }
    if (&halves == &receives_) {
      for (const auto* sends : {&sends_, &read_}) {
        for (const Half& send : *sends) {
          if (send.rank == rank) REQUIRE_FALSE(overlap(memory, send.memory));
        }
      }
    }
    halves.push_back({rank, peer, tag, memory, std::make_shared<Transfer>()});
    return halves.back().ticket;
  }
  Ticket send(int rank, int peer, Tag tag, ConstBytes memory) {
    auto* const data = const_cast<std::byte*>(memory.data());
    return add(sends_, rank, peer, tag, {data, memory.size()});
  }
  Ticket recv(int rank, int peer, Tag tag, MutableBytes memory) {
    return add(receives_, rank, peer, tag, memory);
  }

  // Moves a random deliverable message; false if there is none.
  bool deliver() {
    std::vector<std::pair<std::size_t, std::size_t>> matches;  // a receive and the oldest send
    for (std::size_t in = 0; in < receives_.size(); ++in) {
      const auto same = [&](const Half& half, int rank, int peer) {
        return half.rank == rank && half.peer == peer && half.tag == receives_[in].tag;
      };
      const Half& receive = receives_[in];
      const auto older = std::find_if(receives_.begin(), receives_.end(), [&](const Half& half) {
        return same(half, receive.rank, receive.peer);
      });
      const auto send = std::find_if(sends_.begin(), sends_.end(), [&](const Half& half) {
        return same(half, receive.peer, receive.rank);
      });
      if (&*older == &receive && send != sends_.end()) {
        matches.emplace_back(in, static_cast<std::size_t>(send - sends_.begin()));
      }
    }
    if (matches.empty()) return false;
    const auto [in, out] = matches[random_() % matches.size()];
    const Half receive = receives_[in];
    const Half send = sends_[out];
    receives_.erase(receives_.begin() + static_cast<std::ptrdiff_t>(in));
    sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(out));
    REQUIRE(receive.memory.size() == send.memory.size());
    std::copy(send.memory.begin(), send.memory.end(), receive.memory.begin());
    read_.push_back(send);
    complete(receive, received_++ == failing_receive);
    return true;
  }
  // Completes a random send whose message has moved; false if there is none.
  bool acknowledge() {
    if (read_.empty()) return false;
    const std::size_t index = random_() % read_.size();
    const Half send = read_[index];
    read_.erase(read_.begin() + static_cast<std::ptrdiff_t>(index));
    complete(send, acknowledged_++ == failing_send);
    return true;
  }

  [[nodiscard]] int size() const { return size_; }
  std::mt19937& random() { return random_; }

  int failing_receive = -1;  // index in order of completion; -1: none fails
  int failing_send = -1;

 private:
  static void complete(const Half& half, bool fails) {
    if (fails) half.ticket->status = Status(ErrorCode::transport, "a broken cable", half.peer);
    half.ticket->done = true;
  }

  std::mt19937 random_;
  int size_;
  std::deque<Half> sends_;
  std::deque<Half> receives_;
  std::deque<Half> read_;  // sends whose bytes have arrived, not acknowledged
  int received_ = 0;
  int acknowledged_ = 0;
};

class LateTransport final : public Transport {
 public:
  LateTransport(Network& network, int rank) : network_(network), rank_(rank) {}
  std::string_view name() const override { return "late"; }
  int rank() const override { return rank_; }
  int size() const override { return network_.size(); }
  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override {
    return network_.send(rank_, peer, tag, spans.front());
  }
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override {
    return network_.recv(rank_, peer, tag, spans.front());
  }
  bool progress() override { return false; }
  bool arm() override { return false; }
  void disarm() override {}
  void fail(int, const Status&) override {}
  void abort(const Status&) override {}

 private:
  Network& network_;
  const int rank_;
};

// Advances operations, one per rank, until nothing moves; fails after `turns` turns. `eagerness`:
// of 10 chances to acknowledge a send while something else still moves, how many are taken.
template <class Operations>
void run_late(Network& network, const Operations& operations, unsigned eagerness, int turns) {
  std::vector<std::size_t> order(operations.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int left = turns; left > 0; --left) {
    std::shuffle(order.begin(), order.end(), network.random());
    bool moved = false;
    for (const std::size_t rank : order) moved = operations[rank]->advance() || moved;
    moved = network.deliver() || moved;
    if (!moved || network.random()() % 10 < eagerness) moved = network.acknowledge() || moved;
    if (!moved) return;
  }
  FAIL("the operations never come to rest");
}

}  // namespace rueda::test
