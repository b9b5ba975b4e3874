// Compressed allreduces over a transport that does everything late and in odd orders.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "backend/compressed_allreduce.h"
#include "effort.h"
#include "ranks/late_network.h"

namespace rueda::test::compressed_operation_test {

namespace {

// An allreduce of two tensors on every rank of the network.
class Allreduce {
 public:
  Allreduce(Network& network, std::size_t count, std::int64_t chunk, const Reduction& reduction)
      : network_(network), members_(static_cast<std::size_t>(network.size())) {
    std::iota(members_.begin(), members_.end(), 0);
    for (int rank = 0; rank < network.size(); ++rank) {
      auto& data = data_.emplace_back(count);
      for (std::size_t i = 0; i < count; ++i) data[i] = input(rank, i);
    }
    for (int rank = 0; rank < network.size(); ++rank) {
      transports_.push_back(std::make_unique<LateTransport>(network, rank));
      Lane lane;
      lane.transport = transports_.back().get();
      lane.members = &members_;
      lane.rank = rank;
      lane.tag = {.sequence = 5};
      lane.chunk_bytes = chunk * static_cast<std::int64_t>(sizeof(float));
      lane.counters = &counters_;
      auto* const begin =
          reinterpret_cast<std::byte*>(data_[static_cast<std::size_t>(rank)].data());
      const auto first = static_cast<std::int64_t>(count / 3);
      std::byte* const second = begin + static_cast<std::size_t>(first) * sizeof(float);
      operations_.push_back(std::make_unique<CompressedAllreduce>(
          lane, reduction,
          std::vector<Piece>{{begin, begin, first},
                             {second, second, static_cast<std::int64_t>(count) - first}},
          [](std::size_t, int) { FAIL("all values are finite"); }));
    }
  }

  static float input(int rank, std::size_t i) {
    return static_cast<float>(rank + 1) * (1 + static_cast<float>(i % 50));
  }

  void run(unsigned eagerness) { run_late(network_, operations_, eagerness, 200'000); }

  [[nodiscard]] const Operation& operation(int rank) const {
    return *operations_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] const std::vector<float>& data(int rank) const {
    return data_[static_cast<std::size_t>(rank)];
  }

 private:
  Network& network_;
  std::vector<int> members_;
  TransferCounters counters_;
  std::vector<std::vector<float>> data_;
  std::vector<std::unique_ptr<LateTransport>> transports_;
  std::vector<std::unique_ptr<CompressedAllreduce>> operations_;
};

Reduction sum_by(CodecKind codec, int ranks) {
  Reduction reduction;
  reduction.contributors = ranks;
  reduction.compression = {codec, is_sparse(codec) ? 0.5 : 0.0};
  return reduction;
}

}  // namespace

TEST_CASE("a compressed allreduce ends with the same bits everywhere, whatever comes late") {
  const unsigned eagerness = GENERATE(0U, 3U, 10U);
  const auto codec = GENERATE(CodecKind::bfloat16, CodecKind::int8, CodecKind::top_k);
  for (unsigned seed = 0; seed < effort(40U, 8U); ++seed) {
    const int size = 2 + static_cast<int>(seed % 4);
    Network network(size, seed);
    const std::size_t count = network.random()() % 9000;
    const std::int64_t chunk = 128 * static_cast<std::int64_t>(1 + network.random()() % 3);
    CAPTURE(eagerness, name_of(codec), seed, size, count, chunk);
    Allreduce allreduce(network, count, chunk, sum_by(codec, size));
    allreduce.run(eagerness);
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(allreduce.operation(rank).done());
      REQUIRE(allreduce.operation(rank).status().ok());
      REQUIRE(allreduce.operation(rank).awaited().empty());
      REQUIRE(allreduce.data(rank) == allreduce.data(0));
    }
    if (is_sparse(codec)) continue;
    for (std::size_t i = 0; i < count; ++i) {
      const float exact = Allreduce::input(0, i) * static_cast<float>(size * (size + 1) / 2);
      const float bound = static_cast<float>(size * (size + 1)) * 50 / 127;
      REQUIRE(std::fabs(allreduce.data(0)[i] - exact) <= bound);
    }
  }
}

TEST_CASE("a receive or a send that fails is the compressed allreduce's failure on that rank") {
  const bool is_receive = GENERATE(true, false);
  const auto codec = GENERATE(CodecKind::int8, CodecKind::top_k);
  for (int failing = 0; failing < 24; failing += effort(1, 3)) {
    CAPTURE(is_receive, name_of(codec), failing);
    Network network(3, static_cast<unsigned>(failing));
    (is_receive ? network.failing_receive : network.failing_send) = failing;
    Allreduce allreduce(network, 1500, 128, sum_by(codec, 3));
    allreduce.run(5);
    int failed = 0;
    for (int rank = 0; rank < 3; ++rank) {
      if (allreduce.operation(rank).status().ok()) continue;
      ++failed;
      REQUIRE(allreduce.operation(rank).done());
      REQUIRE(allreduce.operation(rank).status().message() == "a broken cable");
    }
    REQUIRE(failed == 1);
  }
}

}  // namespace rueda::test::compressed_operation_test
