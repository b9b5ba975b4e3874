// Which rank combines what if ranks access each other's tensors directly; each element is combined
// exactly once.
#include "onehost/direct_reduction.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <vector>

#include "onehost/host_reach.h"
#include "onehost/registered_memory.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"

namespace rueda::test::direct_reduction_test {

namespace {

using Elements = std::vector<std::int32_t>;

// In memory that all ranks can access without a system call.
struct Tensor {
  explicit Tensor(std::int64_t its_count, std::int32_t value) : count(its_count) {
    auto pool = RegisteredMemory::of_process();
    pool.status().throw_if_error();
    memory = pool.value()->allocate(
        std::max<std::size_t>(1, static_cast<std::size_t>(count) * sizeof value));
    std::fill_n(data(), count, value);
  }
  [[nodiscard]] std::int32_t* data() const { return reinterpret_cast<std::int32_t*>(memory.get()); }
  [[nodiscard]] Elements elements() const { return {data(), data() + count}; }
  std::int64_t count;
  std::shared_ptr<std::byte[]> memory;
};

// The outcome of two ranks on one host, both run by this thread: they combine chunks in turn, after
// rank 0 has combined `ahead` chunks.
struct Run {
  std::vector<Elements> results;  // rank 0, then rank 1
  std::vector<std::int64_t> combined;
};

Run run_two_ranks(const std::vector<std::int64_t>& counts, std::size_t chunk, int ahead) {
  InprocHub hub(2);
  std::vector<std::shared_ptr<HostMemory>> hosts(2);
  run_ranks(2, [&](int rank) {
    auto host = HostMemory::form(*hub.make_bootstrap(rank), soon());
    host.status().throw_if_error();
    hosts[static_cast<std::size_t>(rank)] = host.value();
  });
  const Combination sum{.dtype = DataType::int32, .op = ReduceOp::sum};
  const Combiner combiner(sum);
  HostPolicy policy;
  policy.chunk = chunk;
  struct Rank {
    std::unique_ptr<HostChannel> channel;
    std::vector<Tensor> tensors;
    std::unique_ptr<HostTensors> all;
    HostCollective::Traffic traffic;
    std::unique_ptr<DirectReduction> reduction;
  };
  std::vector<Rank> ranks(2);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Rank& self = ranks[i];
    self.channel = std::make_unique<HostChannel>(hosts[i], std::vector{0, 1}, static_cast<int>(i),
                                                 7, HostChannel::WokenBy::channel);
    std::vector<Piece> pieces;
    for (const std::int64_t count : counts) {
      const Tensor& tensor = self.tensors.emplace_back(count, i == 0 ? 1 : 10);
      pieces.push_back({tensor.memory.get(), tensor.memory.get(), count});
    }
    self.all = std::make_unique<HostTensors>(*self.channel, sum.dtype, pieces, nullptr);
    self.reduction = std::make_unique<DirectReduction>(*self.channel, policy, *self.all, sum,
                                                       combiner, self.traffic);
  }
  for (Rank& self : ranks) {
    REQUIRE(self.channel->is_open());
    self.channel->begin();
    REQUIRE(self.channel->memory().populate_table());
    std::byte* target =
        counts.size() == 1 ? self.channel->memory().line() : self.channel->memory().table();
    for (const Tensor& tensor : self.tensors) {
      const Reach reach =
          Reach::of(self.channel->host(), tensor.memory.get(), self.all->bytes_of(tensor.count));
      const Exposure exposure{reach.where, reach.where, reach.place, reach.place};
      std::memcpy(target, &exposure, sizeof exposure);
      target += sizeof exposure;
    }
    self.channel->arrive();
  }
  for (Rank& self : ranks) self.reduction->begin();
  const auto go_on = [](Rank& self) {
    if (self.reduction->has_more()) CHECK(self.reduction->combine_next().ok());
  };
  for (int i = 0; i < ahead; ++i) go_on(ranks[0]);
  while (ranks[0].reduction->has_more() || ranks[1].reduction->has_more()) {
    for (Rank& self : ranks) go_on(self);
  }
  Run run;
  for (const Rank& self : ranks) {
    Elements& result = run.results.emplace_back();
    for (const Tensor& tensor : self.tensors) {
      const Elements own = tensor.elements();
      result.insert(result.end(), own.begin(), own.end());
    }
    run.combined.push_back(self.traffic.combined);
  }
  return run;
}

}  // namespace

TEST_CASE("shares cover a tensor, one after the other, and begin on cache lines") {
  const auto element = GENERATE(as<std::size_t>{}, 1, 2, 4, 8, 16);
  const int ranks = GENERATE(1, 2, 3, 5, 8, 64);
  const std::int64_t count =
      GENERATE(0, 1, 7, 63, 64, 65, 1000, 4096, 100'003, std::int64_t{1} << 40);
  const auto bytes_of = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(element);
  };
  std::int64_t next = 0;
  std::int64_t longest = 0;
  std::int64_t shortest = count;
  for (int rank = 0; rank < ranks; ++rank) {
    const ElementRange share = share_of(count, element, rank, ranks);
    REQUIRE(share.first == next);
    REQUIRE(share.count >= 0);
    if (share.count > 0) CHECK(bytes_of(share.first) % 64 == 0);
    next += share.count;
    longest = std::max(longest, share.count);
    shortest = std::min(shortest, share.count);
  }
  CHECK(next == count);
  CHECK(bytes_of(longest - shortest) <= 2 * 64);
}

TEST_CASE("each element is combined once, by whichever rank comes to it") {
  // Shares of few chunks; claimed chunks; several tensors with borders within chunks.
  const auto counts =
      GENERATE(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{1},
               std::vector<std::int64_t>{40}, std::vector<std::int64_t>{1000},
               std::vector<std::int64_t>{3, 0, 500, 1, 77}, std::vector<std::int64_t>{5, 6});
  const auto chunk = GENERATE(as<std::size_t>{}, 1, 64, 100, 4096);
  const int ahead = GENERATE(0, 3, 10'000);
  const std::int64_t count = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const Run run = run_two_ranks(counts, chunk, ahead);
  const Elements expected(static_cast<std::size_t>(count), 11);
  CHECK(run.results[0] == expected);
  CHECK(run.results[1] == expected);
  CHECK(run.combined[0] + run.combined[1] == 4 * count);
  const bool is_claimed =
      count > 2 * std::max<std::int64_t>(1, static_cast<std::int64_t>(chunk / 4));
  if (is_claimed && ahead == 10'000) CHECK(run.combined[1] == 0);
}

}  // namespace rueda::test::direct_reduction_test
