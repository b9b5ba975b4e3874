// Collectives on process sets that span hosts, composed of phases in shared memory and between
// hosts: traffic on each link, identical bits on all ranks, and termination.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "effort.h"
#include "onehost/registered_memory.h"
#include "plan/double_tree.h"
#include "plan/recursive_plan.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::several_hosts_collectives_test {

namespace {

using HostOf = std::vector<int>;

Options with(const std::string& algorithm, std::int64_t chunk = 4096) {
  Options options;
  options.algorithm = algorithm;
  options.ring_chunk = chunk;
  return options;
}

void run_on(const HostOf& host_of, const Options& options,
            const std::function<void(int, Runtime&)>& body) {
  run_engines(static_cast<int>(host_of.size()), options, body, nullptr, Sharing::memory, host_of);
}

int count_hosts(const HostOf& host_of) {
  return 1 + *std::max_element(host_of.begin(), host_of.end());
}

std::vector<float> random_floats(std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> tensor(count);
  const std::size_t drawn = std::min(count, max_drawn);
  std::generate_n(tensor.begin(), drawn, [&] { return values(random); });
  for (std::size_t at = drawn; at < count; at += drawn) {
    std::memcpy(&tensor[at], tensor.data(), std::min(drawn, count - at) * sizeof(float));
  }
  return tensor;
}

// Results of all ranks, for comparison.
class Results {
 public:
  explicit Results(const HostOf& host_of)
      : all_(host_of.size()), together_(static_cast<std::ptrdiff_t>(host_of.size())) {}

  // Collective. Fails if any two ranks differ in a bit.
  void expect_equal(int rank, const std::vector<float>& own, const std::string& what) {
    all_[static_cast<std::size_t>(rank)] = own;
    together_.arrive_and_wait();
    const bool are_equal =
        own.size() == all_.front().size() &&
        (own.empty() || std::memcmp(own.data(), all_.front().data(), own.size() * 4) == 0);
    together_.arrive_and_wait();
    expect(are_equal, what + ": the same bits on all ranks");
  }

 private:
  std::vector<std::vector<float>> all_;
  std::barrier<> together_;
};

// Sums per host of counters that each rank reports.
class PerHost {
 public:
  explicit PerHost(HostOf host_of) : host_of_(std::move(host_of)) {
    for (auto& each : sums_) each.store(0);
  }
  void add(int rank, std::int64_t value) {
    sums_[static_cast<std::size_t>(host_of_[static_cast<std::size_t>(rank)])].fetch_add(value);
  }
  [[nodiscard]] std::int64_t of(int host) const {
    return sums_[static_cast<std::size_t>(host)].load();
  }

 private:
  HostOf host_of_;
  std::array<std::atomic<std::int64_t>, 9> sums_;
};

}  // namespace

TEST_CASE("a host sends what has to cross its link once, however many ranks it has") {
  const auto host_of = GENERATE(from_range(efforts<HostOf>(
      {{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 0, 1, 2}, {0, 1, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 2}},
      {{0, 0, 1, 2}, {0, 1, 1, 1, 1}, {0, 1, 2}})));
  constexpr std::int64_t count = effort(1'000'003, 300'007);
  PerHost sent(host_of);
  run_on(host_of, with("hierarchical", 64 << 10), [&](int rank, Runtime& engine) {
    std::vector<float> tensor(count, 1);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
    const auto size = static_cast<float>(host_of.size());
    expect(std::all_of(tensor.begin(), tensor.end(), [=](float x) { return x == size; }), "sum");
    sent.add(rank, metric(engine, "allreduce_payload_bytes_sent"));
  });
  const int hosts = count_hosts(host_of);
  std::int64_t all = 0;
  for (int host = 0; host < hosts; ++host) {
    CAPTURE(host, hosts);
    all += sent.of(host);
    const std::int64_t share = 2 * (hosts - 1) * count * 4 / hosts;
    // Segments may differ by one element in each part, slice and phase.
    CHECK(std::abs(sent.of(host) - share) < 2000);
  }
  CHECK(all == 2 * (hosts - 1) * count * 4);
}

TEST_CASE("a small tensor takes one rank of each host as many messages as its plan says") {
  const bool halves = GENERATE(false, true);
  const std::int64_t count = GENERATE(1, 3, 256);
  const auto host_of = GENERATE(HostOf{0, 0, 1, 1}, HostOf{0, 0, 1, 2, 3}, HostOf{0, 1, 2, 2});
  PerHost sent(host_of);
  run_on(host_of, with(halves ? "halving" : "doubling"), [&](int rank, Runtime& engine) {
    std::vector<float> tensor(static_cast<std::size_t>(count), 1);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
    expect(tensor.back() == static_cast<float>(host_of.size()), "sum");
    sent.add(rank, metric(engine, "allreduce_messages_sent"));
  });
  const int hosts = count_hosts(host_of);
  for (int host = 0; host < hosts; ++host) {
    std::int64_t messages = 0;
    const auto plan = halves ? halving_plan : doubling_plan;
    for (const Exchange& exchange : plan(host, hosts, count).exchanges) {
      messages += exchange.sends.count > 0 ? 1 : 0;
    }
    CHECK(sent.of(host) == messages);
  }
}

TEST_CASE("along two trees each host sends a block to its parent and to its children") {
  const int hosts = GENERATE(from_range(efforts({2, 3, 4, 5, 6, 7, 8, 9}, {2, 3, 6})));
  HostOf host_of;
  for (int rank = 0; rank < hosts; ++rank) host_of.push_back(rank);
  const std::int64_t count = GENERATE(0, 1, 2, 1021);
  PerHost sent(host_of);
  Results results(host_of);
  run_on(host_of, with("tree", 1024), [&](int rank, Runtime& engine) {
    std::vector<float> tensor = random_floats(static_cast<std::size_t>(count), rank);
    finish(submit(engine, allreduce_of(tensor, DataType::float32, "x")));
    results.expect_equal(rank, tensor, std::to_string(count) + " elements");
    sent.add(rank, metric(engine, "allreduce_messages_sent"));
  });
  for (int host = 0; host < hosts; ++host) {
    std::int64_t messages = 0;
    // A single element has no second half.
    for (int tree = 0; tree < std::min<std::int64_t>(count, 2); ++tree) {
      const TreePlace place = place_in_tree(tree, host, hosts);
      const auto children = static_cast<std::int64_t>(place.children.size());
      messages += children + (place.is_root() ? 0 : 1);
    }
    // Half of the largest tensor is two chunks.
    CHECK(sent.of(host) == (count == 1021 ? 2 * messages : messages));
  }
}

TEST_CASE("all ranks hold the same bits, of any size, in any memory") {
  const auto host_of =
      GENERATE(HostOf{0, 0, 1, 1}, HostOf{1, 0, 0, 0}, HostOf{0, 1, 0, 2}, HostOf{0, 1, 1, 1, 1});
  const auto algorithm = GENERATE("hierarchical", "doubling", "halving", "tree", "auto");
  Results results(host_of);
  run_on(host_of, with(algorithm), [&](int rank, Runtime& engine) {
    for (const std::size_t count :
         {0U, 1U, 2U, 13U, 14U, 255U, 5003U, 100'003U, effort(700'001U, 530'001U)}) {
      std::vector<float> tensor = random_floats(count, rank);
      Submission submission = allreduce_of(tensor, DataType::float32, "x", ReduceOp::average);
      submission.request.prescale = 0.3;
      submission.request.postscale = 1.7;
      finish(submit(engine, std::move(submission)));
      results.expect_equal(rank, tensor, "private tensors of " + std::to_string(count));
      const auto pool = RegisteredMemory::of_process();
      const auto memory = pool.value()->allocate(count * sizeof(float) + 64);
      auto* const data = reinterpret_cast<float*>(memory.get());
      const std::vector<float> own = random_floats(count, rank + 10);
      std::copy(own.begin(), own.end(), data);
      std::vector<float> input = own;
      submission = allreduce_of(input, DataType::float32, "y");
      submission.output = memory.get();
      if (rank % 2 == 0) submission.input = memory.get();
      finish(submit(engine, std::move(submission)));
      results.expect_equal(rank, std::vector<float>(data, data + count), "registered ones");
    }
  });
}

TEST_CASE("averages and factors are applied once, whoever has joined") {
  // Either both ranks of one host or one rank of each host joins.
  const auto absent = GENERATE(std::vector<int>{2, 3}, std::vector<int>{0, 1, 2},
                               std::vector<int>{1, 3}, std::vector<int>{0, 1});
  const auto algorithm = GENERATE("hierarchical", "doubling", "halving", "tree");
  const HostOf host_of{0, 0, 1, 1};
  run_on(host_of, with(algorithm), [&](int rank, Runtime& engine) {
    const bool joins = std::find(absent.begin(), absent.end(), rank) != absent.end();
    if (joins) {
      finish(engine.join(0));
      return;
    }
    for (const std::size_t count : {3U, 30'000U, effort(600'000U, 300'000U)}) {
      std::vector<float> tensor(count, 3);
      Submission submission = allreduce_of(tensor, DataType::float32, "a", ReduceOp::average);
      submission.request.prescale = 2;
      submission.request.postscale = 0.5;
      finish(submit(engine, std::move(submission)));
      expect(tensor.front() == 3 && tensor.back() == 3, "the average");
      std::vector<float> larger(count, static_cast<float>(rank));
      finish(submit(engine, allreduce_of(larger, DataType::float32, "m", ReduceOp::max)));
      int highest = 3;
      while (std::find(absent.begin(), absent.end(), highest) != absent.end()) --highest;
      expect(larger.back() == static_cast<float>(highest), "the maximum");
    }
    finish(engine.join(0));
  });
}

TEST_CASE("many at once, of all sizes, fused or not, replayed or not") {
  const auto host_of = GENERATE(HostOf{0, 0, 1, 1}, HostOf{0, 1, 1, 0, 0});
  Options options = with(GENERATE("auto", "tree:0-1M"), effort(16 << 10, 4 << 10));
  options.fusion_threshold = GENERATE(0, 300'000);
  options.batches_in_flight = 4;
  run_on(host_of, options, [&](int rank, Runtime& engine) {
    const auto size = static_cast<float>(host_of.size());
    const std::vector<std::size_t> counts{1,   effort(700'000U, 100'000U),   20, 5000, 90'000,
                                          300, effort(1'200'000U, 300'000U), 64, 7};
    for (int step = 0; step < effort(4, 2); ++step) {
      std::vector<std::vector<float>> tensors;
      std::vector<Handle> handles;
      for (const std::size_t count : counts) {
        tensors.emplace_back(count, static_cast<float>(rank + step));
      }
      std::vector<std::size_t> order(counts.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank + step)));
      for (const std::size_t i : order) {
        handles.push_back(
            submit(engine, allreduce_of(tensors[i], DataType::float32, "t" + std::to_string(i))));
      }
      for (const Handle& handle : handles) finish(handle);
      const float sum = size * (size - 1) / 2 + size * static_cast<float>(step);
      for (const auto& tensor : tensors) {
        expect(std::all_of(tensor.begin(), tensor.end(), [=](float x) { return x == sum; }),
               "the sum of " + std::to_string(tensor.size()));
      }
    }
  });
}

TEST_CASE("a broadcast and an all-gather cross each link once") {
  const auto host_of = GENERATE(HostOf{0, 0, 1, 1}, HostOf{0, 1, 1, 1, 2}, HostOf{0, 1, 0, 1});
  const int hosts = count_hosts(host_of);
  const auto ranks = static_cast<int>(host_of.size());
  constexpr std::int64_t bytes = effort(3'000'000, 600'000);
  PerHost broadcast(host_of);
  PerHost gathered(host_of);
  run_on(host_of, with("hierarchical", 64 << 10), [&](int rank, Runtime& engine) {
    for (int root = 0; root < ranks; ++root) {
      std::vector<std::uint8_t> tensor(bytes, static_cast<std::uint8_t>(rank + 1));
      Submission submission = allreduce_of(tensor, DataType::uint8, "b");
      submission.request.collective = Collective::broadcast;
      submission.request.root = root;
      submission.request.name = "b" + std::to_string(root);
      finish(submit(engine, std::move(submission)));
      expect(tensor.front() == root + 1 && tensor.back() == root + 1, "the root's");
    }
    broadcast.add(rank, metric(engine, "broadcast_payload_bytes_sent"));
    std::vector<std::uint8_t> own(bytes, static_cast<std::uint8_t>(rank));
    Submission submission = allreduce_of(own, DataType::uint8, "g");
    submission.request.collective = Collective::allgather;
    submission.output = nullptr;
    const Handle handle = submit(engine, std::move(submission));
    finish(handle);
    const std::byte* all = handle.state()->output.data.get();
    for (int other = 0; other < ranks; ++other) {
      const auto value = static_cast<std::byte>(other);
      expect(all[other * bytes] == value && all[(other + 1) * bytes - 1] == value, "a block");
    }
    gathered.add(rank, metric(engine, "allgather_payload_bytes_sent"));
  });
  std::int64_t all_broadcast = 0;
  std::int64_t all_gathered = 0;
  for (int host = 0; host < hosts; ++host) {
    all_broadcast += broadcast.of(host);
    all_gathered += gathered.of(host);
  }
  CHECK(all_broadcast == ranks * (hosts - 1) * bytes);
  CHECK(all_gathered == ranks * (hosts - 1) * bytes);
}

TEST_CASE("a reduce-scatter crosses each link once") {
  const auto host_of = GENERATE(HostOf{0, 0, 1, 1}, HostOf{0, 1, 1, 1, 2}, HostOf{0, 1, 0, 1});
  const int hosts = count_hosts(host_of);
  const auto ranks = static_cast<std::int64_t>(host_of.size());
  constexpr std::int64_t rows = effort(200'003, 50'021);  // per rank
  PerHost sent(host_of);
  run_on(host_of, with("hierarchical", 64 << 10), [&](int rank, Runtime& engine) {
    std::vector<float> tensor(static_cast<std::size_t>(ranks * rows));
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      tensor[i] = static_cast<float>(static_cast<int>(i % 1000) + rank);
    }
    Submission submission = allreduce_of(tensor, DataType::float32, "s");
    submission.request.collective = Collective::reduce_scatter;
    submission.output = nullptr;
    const Handle handle = submit(engine, std::move(submission));
    finish(handle);
    const auto* own = reinterpret_cast<const float*>(handle.state()->output.data.get());
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t sum = ranks * ((rank * rows + i) % 1000) + ranks * (ranks - 1) / 2;
      if (own[i] != static_cast<float>(sum)) expect(false, str("the sum in row ", i));
    }
    sent.add(rank, metric(engine, "reduce_scatter_payload_bytes_sent"));
  });
  const std::int64_t bytes = rows * std::int64_t{sizeof(float)};
  std::int64_t all = 0;
  for (int host = 0; host < hosts; ++host) {
    // Blocks for a host's own ranks stay on the host: each block starts behind its owner.
    const auto members = std::count(host_of.begin(), host_of.end(), host);
    CHECK(sent.of(host) == (ranks - members) * bytes);
    all += sent.of(host);
  }
  CHECK(all == ranks * (hosts - 1) * bytes);
}

TEST_CASE("sets across hosts come and go, and use what they have found room for") {
  const HostOf host_of{0, 0, 1, 1, 1};
  run_on(host_of, with("hierarchical"), [&](int rank, Runtime& engine) {
    for (int round = 0; round < 5; ++round) {
      const int all = add_set(engine, {0, 1, 2, 3, 4});
      const int some = add_set(engine, {0, 1, 3, 4});
      std::vector<float> tensor(effort(200'000, 60'000), 1);
      finish(submit(engine, allreduce_of(tensor, DataType::float32, "x"), all));
      expect(tensor.back() == 5, "five");
      if (rank != 2) {
        finish(submit(engine, allreduce_of(tensor, DataType::float32, "x"), some));
        expect(tensor.back() == 20, "four of them");
      }
      remove_set(engine, some);
      remove_set(engine, all);
    }
  });
}

TEST_CASE("what waits for a rank that fails in the middle ends on all ranks of all hosts") {
  const HostOf host_of{0, 0, 1, 1};
  const int failing = GENERATE(0, 3);
  const auto algorithm = GENERATE("hierarchical", "tree");
  std::barrier together(4);
  run_on(host_of, with(algorithm, 16 << 10), [&](int rank, Runtime& engine) {
    std::vector<float> tensor(effort(20'000'000, 5'000'000), 1);
    const Handle handle = submit(engine, allreduce_of(tensor, DataType::float32, "x"));
    await([&] { return metric(engine, "allreduce_batches") > 0; }, "a batch that begins");
    together.arrive_and_wait();
    if (rank == failing) engine.abort("gives up");
    expect(handle.state()->wait(soon()) == FutexWake::changed, "an operation that ends");
    together.arrive_and_wait();
    const Status& status = handle.state()->status;
    expect(status.ok() || status.code() == ErrorCode::peer_lost, status.to_string());
  });
}

}  // namespace rueda::test::several_hosts_collectives_test
