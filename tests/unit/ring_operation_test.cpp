// Ring operations over a transport that does everything as late, and in as odd an order, as the
// contract of Transport allows, and that fails a test which breaks the contract.
#include "backend/ring_operation.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <memory>
#include <numeric>
#include <random>

#include "core/strings.h"

namespace rueda::test::ring_operation_test {

namespace {

constexpr std::size_t element = sizeof(double);

bool overlap(ConstBytes left, ConstBytes right) {
  return left.data() < right.data() + right.size() && right.data() < left.data() + left.size();
}

// All ranks' transports in one thread. A message moves when it is chosen, straight from the
// sender's memory, which belongs to the transport until the send is acknowledged: later than the
// receive.
class Network {
 public:
  Network(int size, unsigned seed) : random_(seed), size_(size) {}

  struct Half {
    int rank;
    int peer;
    Tag tag;
    MutableBytes memory;  // of a send it is only read
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

  // Moves a message, one of those that can be; false where there is none.
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
  // Tells a sender that its memory is its own again; false where there is none to tell.
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

  int failing_receive = -1;  // which of all, in the order of their completion
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

// An allreduce on every rank of the network.
class Ring {
 public:
  Ring(Network& network, std::int64_t count, std::int64_t chunk, const Reduction& reduction)
      : network_(network), members_(static_cast<std::size_t>(network.size())) {
    std::iota(members_.begin(), members_.end(), 0);
    for (int rank = 0; rank < network.size(); ++rank) {
      auto& data = data_.emplace_back(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < data.size(); ++i) {
        data[i] = static_cast<double>((rank + 1) * 1000) + static_cast<double>(i);
      }
    }
    for (int rank = 0; rank < network.size(); ++rank) {
      transports_.push_back(std::make_unique<LateTransport>(network, rank));
      Lane lane;
      lane.transport = transports_.back().get();
      lane.members = &members_;
      lane.rank = rank;
      lane.tag = 5;
      lane.counters = &counters_;
      auto* const data = data_[static_cast<std::size_t>(rank)].data();
      operations_.push_back(std::make_unique<RingOperation>(
          lane, RingPlan::allreduce(rank, network.size(), count, chunk),
          reinterpret_cast<std::byte*>(data), element, &reduction));
    }
  }

  // Until all are done, or nothing moves. `eagerness`: of 10 chances to acknowledge a send before
  // everything else has come to rest, how many are taken.
  void run(unsigned eagerness) {
    std::vector<std::size_t> order(operations_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (int left = 100'000; left > 0; --left) {
      std::shuffle(order.begin(), order.end(), network_.random());
      bool moved = false;
      for (const std::size_t rank : order) moved = operations_[rank]->advance() || moved;
      moved = network_.deliver() || moved;
      if (!moved || network_.random()() % 10 < eagerness) moved = network_.acknowledge() || moved;
      if (!moved) return;
    }
    FAIL("the ring never comes to rest");
  }

  [[nodiscard]] const RingOperation& operation(int rank) const {
    return *operations_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const std::vector<double>& data(int rank) const {
    return data_[static_cast<std::size_t>(rank)];
  }

 private:
  Network& network_;
  std::vector<int> members_;
  TransferCounters counters_;
  std::vector<std::vector<double>> data_;
  std::vector<std::unique_ptr<LateTransport>> transports_;
  std::vector<std::unique_ptr<RingOperation>> operations_;
};

Reduction sum_of_doubles() {
  Reduction reduction;
  reduction.dtype = DataType::float64;
  return reduction;
}

}  // namespace

TEST_CASE("a ring is right, and touches no memory that is on its way, whatever comes late") {
  const unsigned eagerness = GENERATE(0U, 3U, 10U);
  for (unsigned seed = 0; seed < 60; ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    Network network(size, seed);
    const auto count = static_cast<std::int64_t>(network.random()() % 60);
    const auto chunk = static_cast<std::int64_t>(1 + network.random()() % 12);
    CAPTURE(eagerness, seed, size, count, chunk);
    Reduction reduction = sum_of_doubles();
    reduction.op = seed % 2 == 0 ? ReduceOp::sum : ReduceOp::average;
    reduction.divisor = size;
    reduction.postscale = 0.5;
    Ring ring(network, count, chunk, reduction);
    ring.run(eagerness);
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(ring.operation(rank).done());
      REQUIRE(ring.operation(rank).status().ok());
      for (std::size_t i = 0; i < ring.data(rank).size(); ++i) {
        const double sum = 500.0 * size * (size + 1) + static_cast<double>(i) * size;
        const double divisor = seed % 2 == 0 ? 1 : size;
        REQUIRE(ring.data(rank)[i] == sum / divisor * 0.5);
      }
    }
  }
}

TEST_CASE("a receive or a send that fails is the ring's failure on that rank") {
  const bool is_receive = GENERATE(true, false);
  // Of 3 ranks with 4 chunks a segment: 16 hops each.
  for (int failing = 0; failing < 3 * 16; ++failing) {
    CAPTURE(is_receive, failing);
    Network network(3, static_cast<unsigned>(failing));
    (is_receive ? network.failing_receive : network.failing_send) = failing;
    Ring ring(network, 12, 1, sum_of_doubles());
    ring.run(5);
    int failed = 0;
    for (int rank = 0; rank < 3; ++rank) {
      if (ring.operation(rank).status().ok()) continue;
      ++failed;
      REQUIRE(ring.operation(rank).done());
      REQUIRE(ring.operation(rank).status().message() == "a broken cable");
    }
    REQUIRE(failed == 1);
  }
}

}  // namespace rueda::test::ring_operation_test
