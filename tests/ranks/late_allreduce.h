// An allreduce on every rank of a network that delays and reorders everything.
#pragma once

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "ranks/late_network.h"

namespace rueda::test {

inline Reduction sum_of_doubles() {
  Reduction reduction;
  reduction.dtype = DataType::float64;
  return reduction;
}

inline double thousands_and_index(int rank, std::size_t index) {
  return static_cast<double>((rank + 1) * 1000) + static_cast<double>(index);
}

// `Made`: the class of the operation, which works in place.
template <class Made, class Element = double>
class LateAllreduce {
 public:
  // `input(rank, index)`: a rank's element. `make(lane, data)`: makes the operation of one rank.
  template <class Input, class Make>
  LateAllreduce(Network& network, std::int64_t count, const Input& input, const Make& make)
      : network_(network), members_(static_cast<std::size_t>(network.size())) {
    std::iota(members_.begin(), members_.end(), 0);
    for (int rank = 0; rank < network.size(); ++rank) {
      auto& data = data_.emplace_back(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = input(rank, i);
    }
    for (int rank = 0; rank < network.size(); ++rank) {
      transports_.push_back(std::make_unique<LateTransport>(network, rank));
      Lane lane;
      lane.transport = transports_.back().get();
      lane.members = &members_;
      lane.rank = rank;
      lane.tag = {.sequence = 5};
      lane.counters = &counters_;
      auto* const data = data_[static_cast<std::size_t>(rank)].data();
      operations_.push_back(make(lane, reinterpret_cast<std::byte*>(data)));
    }
  }
  LateAllreduce(const LateAllreduce&) = delete;
  LateAllreduce& operator=(const LateAllreduce&) = delete;

  void run(unsigned eagerness, int turns = 100'000) {
    run_late(network_, operations_, eagerness, turns);
  }
  // Advances all ranks except one until nothing moves.
  void run_without(int absent) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < network_.size(); ++rank) {
        if (rank != absent) moved = operations_[static_cast<std::size_t>(rank)]->advance() || moved;
      }
      moved = network_.deliver() || network_.acknowledge() || moved;
    }
  }

  [[nodiscard]] const Made& operation(int rank) const {
    return *operations_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const std::vector<Element>& data(int rank) const {
    return data_[static_cast<std::size_t>(rank)];
  }

 private:
  Network& network_;
  std::vector<int> members_;
  TransferCounters counters_;
  std::vector<std::vector<Element>> data_;
  std::vector<std::unique_ptr<LateTransport>> transports_;
  std::vector<std::unique_ptr<Made>> operations_;
};

// Fails every `step`-th of the `transfers` of `size` ranks, one per run, as a receive or a send.
// Exactly one rank must fail, with the reason. `make(network, failing)`: makes the ranks.
template <class Make>
void check_failing_transfers(bool is_receive, int size, int transfers, const Make& make,
                             int step = 1) {
  for (int failing = 0; failing < transfers; failing += step) {
    CAPTURE(is_receive, failing);
    Network network(size, static_cast<unsigned>(failing));
    (is_receive ? network.failing_receive : network.failing_send) = failing;
    auto ranks = make(network, failing);
    ranks.run(5, 200'000);
    int failed = 0;
    for (int rank = 0; rank < size; ++rank) {
      if (ranks.operation(rank).status().ok()) continue;
      ++failed;
      REQUIRE(ranks.operation(rank).done());
      REQUIRE(ranks.operation(rank).status().message() == "a broken cable");
    }
    REQUIRE(failed == 1);
  }
}

}  // namespace rueda::test
