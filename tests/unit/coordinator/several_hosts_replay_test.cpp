// Repeated operations on process sets that span hosts: replayed with one message from each host and
// one to it, and negotiated if something differs.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <random>

#include "core/strings.h"
#include "effort.h"
#include "ranks/engine_ranks.h"
#include "ranks/late_rank.h"
#include "ranks/shuffled_tensors.h"

namespace rueda::test::several_hosts_replay_test {

namespace {

using HostOf = std::vector<int>;  // by rank

// Ranks in blocks, interleaved, in unequal numbers, and alone.
HostOf some_hosts() {
  return GENERATE(from_range(efforts<HostOf>(
      {{0, 0, 1, 1}, {0, 1, 0, 1}, {1, 0, 0, 0}, {0, 1, 1, 2}}, {{0, 0, 1, 1}, {0, 1, 1, 2}})));
}

void run_on(const HostOf& host_of, const std::function<void(int, Runtime&)>& body,
            const Options& options = {}, InprocHub* hub = nullptr) {
  run_engines(static_cast<int>(host_of.size()), options, body, hub, Sharing::memory, host_of);
}

bool leads(const HostOf& host_of, int rank) {
  const auto first =
      std::find(host_of.begin(), host_of.end(), host_of[static_cast<std::size_t>(rank)]);
  return first - host_of.begin() == rank;
}

int hosts_in(const HostOf& host_of) {
  return 1 + *std::max_element(host_of.begin(), host_of.end());
}

void sum(Runtime& engine, const std::string& name, float expected = 4, std::size_t length = 5,
         int set = 0) {
  std::vector<float> tensor(length, 1);
  finish(run(engine, allreduce_of(tensor, DataType::float32, name), set));
  expect(tensor.front() == expected && tensor.back() == expected, "the sum of " + name);
}

// A training step that submits `tensors` tensors together.
class Step {
 public:
  explicit Step(int tensors) : data_(static_cast<std::size_t>(tensors), std::vector<float>(30)) {}

  void perform(Runtime& engine) {
    std::vector<Submission> group;
    for (std::size_t i = 0; i < data_.size(); ++i) {
      std::fill(data_[i].begin(), data_[i].end(), static_cast<float>(i));
      group.push_back(allreduce_of(data_[i], DataType::float32, str("step.", i)));
      group.back().request.group = "step";
      group.back().request.group_size = static_cast<int>(data_.size());
    }
    for (const Handle& handle : engine.submit(0, std::move(group))) finish(handle);
    for (std::size_t i = 0; i < data_.size(); ++i) {
      expect(data_[i].back() == static_cast<float>(4 * i), "the sum");
    }
  }

 private:
  std::vector<std::vector<float>> data_;
};

}  // namespace

TEST_CASE("a step that repeats costs each host one message to the first host, and one back") {
  const HostOf host_of = some_hosts();
  const int tensors = GENERATE(1, 8, 100);
  constexpr int steps = effort(50, 20);
  std::barrier together(4);
  run_on(host_of, [&](int rank, Runtime& engine) {
    Step step(tensors);
    step.perform(engine);
    together.arrive_and_wait();
    const std::int64_t before = metric(engine, "control_messages_sent");
    together.arrive_and_wait();
    for (int i = 0; i < steps; ++i) step.perform(engine);
    together.arrive_and_wait();
    const int each = rank == 0 ? hosts_in(host_of) - 1 : leads(host_of, rank) ? 1 : 0;
    expect(metric(engine, "control_messages_sent") - before == each * steps, "messages");
    expect(metric(engine, "plans_replayed") == steps, "all steps but the first");
    expect(metric(engine, "plans_cancelled") == 0, "none cancelled");
    together.arrive_and_wait();
  });
}

TEST_CASE("what was negotiated one by one is fused when it is replayed together") {
  const HostOf host_of = some_hosts();
  constexpr int tensors = 50;
  constexpr std::size_t length = 1100;  // too long to be sent along with a round
  std::barrier together(4);
  run_on(host_of, [&](int rank, Runtime& engine) {
    std::vector<std::vector<float>> data(tensors, std::vector<float>(length));
    for (int round = 0; round < 20; ++round) {
      std::vector<Handle> handles;
      for (int i = 0; i < tensors; ++i) {
        auto& tensor = data[static_cast<std::size_t>(i)];
        std::fill(tensor.begin(), tensor.end(), static_cast<float>(rank + i));
        // Two operations, which cannot share a batch.
        const ReduceOp op = i % 2 == 0 ? ReduceOp::sum : ReduceOp::max;
        handles.push_back(submit(engine, allreduce_of(tensor, DataType::float32, str("t", i), op)));
        if (round == 0) finish(handles.back());
      }
      for (const Handle& handle : handles) finish(handle);
      for (int i = 0; i < tensors; ++i) {
        const auto expected = static_cast<float>(i % 2 == 0 ? 6 + 4 * i : 3 + i);
        expect(data[static_cast<std::size_t>(i)].back() == expected, "the sum, or the largest");
      }
    }
    together.arrive_and_wait();
    expect(metric(engine, "plans_replayed") == 19 * tensors, "all but the first round");
    expect(metric(engine, "tensors_fused") > 0, "some were fused");
    together.arrive_and_wait();
  });
}

TEST_CASE("what is small is over once all hosts are ready, without a message of its own") {
  const HostOf host_of = some_hosts();
  const auto length = GENERATE(std::size_t{1}, std::size_t{13}, std::size_t{1024});
  constexpr int rounds = effort(30, 10);
  std::barrier together(4);
  run_on(host_of, [&](int rank, Runtime& engine) {
    const auto of = [&](int round, std::size_t i) {
      return static_cast<float>(rank * round) + static_cast<float>(i);
    };
    std::int64_t messages = 0;
    for (int round = 0; round <= rounds; ++round) {
      if (round == 1) {
        together.arrive_and_wait();
        messages = metric(engine, "allreduce_messages_sent");
      }
      std::vector<float> mean(length);
      std::vector<float> least(length);
      std::vector<std::int32_t> scaled(length);
      for (std::size_t i = 0; i < length; ++i) {
        mean[i] = least[i] = of(round, i);
        scaled[i] = rank + 1;
      }
      Submission averaged = allreduce_of(mean, DataType::float32, "mean", ReduceOp::average);
      averaged.request.prescale = 4;
      averaged.request.postscale = 0.5;
      finish(run(engine, std::move(averaged)));
      finish(run(engine, allreduce_of(least, DataType::float32, "least", ReduceOp::min)));
      finish(run(engine, allreduce_of(scaled, DataType::int32, "integers", ReduceOp::sum)));
      for (std::size_t i = 0; i < length; ++i) {
        const auto index = static_cast<float>(i);
        expect(mean[i] == 2 * (1.5F * static_cast<float>(round) + index), "the mean, scaled");
        expect(least[i] == index, "rank 0's");
        expect(scaled[i] == 10, "the sum");
      }
    }
    together.arrive_and_wait();
    expect(metric(engine, "plans_eager") == 3 * rounds, "all but the first round");
    expect(metric(engine, "allreduce_messages_sent") == messages, "no message");
    together.arrive_and_wait();
  });
}

TEST_CASE("16-bit floats that travel along have the same bits on all ranks") {
  const HostOf host_of = some_hosts();
  constexpr std::size_t length = 333;
  std::mutex mutex;
  std::vector<std::vector<std::uint16_t>> results;
  run_on(host_of, [&](int rank, Runtime& engine) {
    std::vector<std::uint16_t> tensor(length);
    for (int round = 0; round < 4; ++round) {
      std::mt19937 random(static_cast<unsigned>(rank));
      for (std::uint16_t& value : tensor) {
        value = static_cast<std::uint16_t>(0x3C00 + random() % 0x3FF);
      }
      finish(run(engine, allreduce_of(tensor, DataType::float16, "x", ReduceOp::average)));
    }
    expect(metric(engine, "plans_eager") == 3, "all but the first");
    const std::scoped_lock lock(mutex);
    results.push_back(tensor);
  });
  for (const auto& result : results) CHECK(result == results.front());
}

TEST_CASE("where one host has forced an algorithm nothing is sent along") {
  Options options;
  options.algorithm = "ring";
  run_on(
      some_hosts(),
      [](int, Runtime& engine) {
        for (int round = 0; round < 5; ++round) sum(engine, "x");
        expect(metric(engine, "plans_replayed") == 4, "replayed");
        expect(metric(engine, "plans_eager") == 0, "over a ring");
      },
      options);
}

TEST_CASE("every collective is replayed across hosts, and right") {
  const HostOf host_of = some_hosts();
  std::barrier together(4);
  run_on(host_of, [&](int rank, Runtime& engine) {
    const auto other = [&](Collective collective, std::vector<float>& data) {
      Submission submission = allreduce_of(data, DataType::float32, str(name_of(collective)));
      submission.request.collective = collective;
      if (collective == Collective::barrier) submission.request.shape = {0};
      if (collective != Collective::broadcast) submission.output = nullptr;
      if (collective == Collective::broadcast) submission.request.root = 1;
      if (collective == Collective::alltoall) submission.rows.assign(4, 6);
      return run(engine, std::move(submission));
    };
    for (int round = 0; round < 6; ++round) {
      const auto value = static_cast<float>(rank + round);
      std::vector<float> data(24, value);
      const Handle scattered = other(Collective::reduce_scatter, data);
      finish(scattered);
      expect(reinterpret_cast<const float*>(scattered.state()->output.data.get())[5] ==
                 static_cast<float>(6 + 4 * round),
             "the sum in its part");
      std::vector<float> own(static_cast<std::size_t>(rank + 1), value);
      const Handle gathered = other(Collective::allgather, own);
      finish(gathered);
      expect(gathered.state()->output.shape == Shape{10}, "all rows");
      const Handle exchanged = other(Collective::alltoall, data);
      finish(exchanged);
      expect(reinterpret_cast<const float*>(exchanged.state()->output.data.get())[6] ==
                 static_cast<float>(1 + round),
             "the second rank's");
      finish(other(Collective::broadcast, data));
      expect(data[0] == static_cast<float>(1 + round), "the root's");
      std::vector<float> nothing(1);
      finish(other(Collective::barrier, nothing));
    }
    together.arrive_and_wait();
    expect(metric(engine, "plans_replayed") == 5 * 5, "all but the first round");
    together.arrive_and_wait();
  });
}

TEST_CASE("operations in flight together run in one order, in whatever order ranks submit them") {
  const HostOf host_of = some_hosts();
  constexpr int tensors = 12;
  run_on(host_of, [&](int rank, Runtime& engine) {
    for (int i = 0; i < tensors; ++i) sum(engine, str("t", i), 4, ShuffledTensors::length(i));
    ShuffledTensors shuffled(tensors, rank);
    for (int round = 0; round < effort(40, 15); ++round) shuffled.reduce(engine, 4);
    expect(metric(engine, "plans_replayed") == effort(40, 15) * tensors, "all were replayed");
  });
}

TEST_CASE("what changes on one rank is a mismatch on all hosts, as ever") {
  const HostOf host_of = some_hosts();
  const int deviating = GENERATE(0, 1, 3);
  run_on(host_of, [&](int rank, Runtime& engine) {
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 3; ++i) sum(engine, "x");
      std::vector<float> tensor(rank == deviating ? 7 : 5, 1);
      const std::string message =
          error_of<MismatchError>(run(engine, allreduce_of(tensor, DataType::float32, "x")));
      expect(message.find("shape differs") != std::string::npos, message);
    }
    sum(engine, "x");
  });
}

TEST_CASE("what changes on all ranks of all hosts is negotiated again") {
  run_on(some_hosts(), [](int, Runtime& engine) {
    for (int round = 0; round < 30; ++round) {
      sum(engine, "x", 4, static_cast<std::size_t>(1 + round / 3));
    }
    expect(metric(engine, "plans_replayed") == 20, "two of three");
  });
}

TEST_CASE("a rank that joins contributes the identity to what its host had joined") {
  run_on(some_hosts(), [&](int rank, Runtime& engine) {
    for (int epoch = 0; epoch < 5; ++epoch) {
      for (int step = 0; step < 5 + 3 * rank; ++step) {
        std::vector<float> tensor(5, 3);
        finish(run(engine, allreduce_of(tensor, DataType::float32, "g", ReduceOp::average)));
        expect(tensor[0] == 3, "the average over those who take part");
      }
      const Handle joined = engine.join(0);
      finish(joined);
      expect(joined.state()->output.last_joined_rank >= 0, "who was last");
      for (int step = 0; step < 3; ++step) sum(engine, "after");
    }
    expect(metric(engine, "plans_replayed") > 0, "some were replayed");
  });
}

TEST_CASE("a rank can join while what it has submitted waits for another host") {
  const HostOf host_of{0, 0, 1, 1};
  run_on(host_of, [&](int rank, Runtime& engine) {
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 3; ++i) sum(engine, "x");
      std::vector<float> tensor(5, 1);
      if (rank < 2) std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      const Handle last = submit(engine, allreduce_of(tensor, DataType::float32, "x"));
      const Handle joined = engine.join(0);
      finish(last);
      expect(tensor[0] == 4, "the sum of what was submitted before");
      finish(joined);
    }
  });
}

TEST_CASE("a rank that shuts down fails what waits to be replayed on another host") {
  const int leaving = GENERATE(0, 1, 2, 3);
  run_on(some_hosts(), [&](int rank, Runtime& engine) {
    for (int round = 0; round < 5; ++round) sum(engine, "x");
    if (rank == leaving) return;
    std::vector<float> tensor(5, 1);
    const std::string message =
        error_of<ShutdownError>(run(engine, allreduce_of(tensor, DataType::float32, "x")));
    expect(message.find(str("rank ", leaving, " has shut down")) != std::string::npos, message);
  });
}

TEST_CASE("what was replayed before a shutdown is finished on all hosts, those behind others too") {
  // Seven hosts: some receive decisions through others.
  const HostOf host_of{0, 1, 2, 3, 4, 5, 6, 0};
  for (int world = 0; world < effort(20, 8); ++world) {
    run_on(host_of, [&](int rank, Runtime& engine) {
      for (int round = 0; round < 5; ++round) sum(engine, "x", 8);
      if (rank == 3) return;  // while others are still at work
      std::vector<float> tensor(5, 1);
      error_of<ShutdownError>(run(engine, allreduce_of(tensor, DataType::float32, "x")));
    });
  }
}

TEST_CASE("a rank that dies is named on all hosts by those who wait for it to replay") {
  const HostOf host_of = some_hosts();
  const int dying = GENERATE(0, 2, 3);
  InprocHub hub(4);
  run_on(
      host_of,
      [&](int rank, Runtime& engine) {
        std::string message;
        for (int round = 0; message.empty(); ++round) {
          if (rank == dying && round == 5) return hub.kill(dying, "killed by the test");
          try {
            sum(engine, "x");
          } catch (const PeerLostError& error) {
            message = error.what();
          }
        }
        expect(message.find(str("rank ", dying)) != std::string::npos, message);
      },
      {}, &hub);
}

TEST_CASE("a tensor that was replayed stalls with an error that names ranks of another host") {
  Options options;
  options.stall_warning = 0.1;
  options.stall_error = 1;
  const int late = GENERATE(0, 1, 2, 3);
  LateRank late_rank(4, late);
  run_on(
      {0, 0, 1, 1},
      [&](int rank, Runtime& engine) {
        for (int round = 0; round < 5; ++round) sum(engine, "x");
        const std::string message = late_rank.stall(rank, engine, "x", 5);
        expect(message.find(str("missing on rank ", late)) != std::string::npos, message);
        sum(engine, "x");
        sum(engine, "x");
      },
      options);
}

TEST_CASE("a name that is submitted again while it waits for another host fails on every rank") {
  std::barrier both_here(2);
  run_on({0, 0, 1, 1}, [&](int rank, Runtime& engine) {
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 2; ++i) sum(engine, "x");
      std::vector<float> first(5, 1);
      std::vector<float> second(5, 1);
      if (rank >= 2) {
        const Handle pending = submit(engine, allreduce_of(first, DataType::float32, "x"));
        both_here.arrive_and_wait();
        if (rank == 3) {
          error_of<DuplicateNameError>(run(engine, allreduce_of(second, DataType::float32, "x")));
        }
        sum(engine, "go");
        error_of<DuplicateNameError>(pending);
      } else {
        sum(engine, "go");
        error_of<DuplicateNameError>(run(engine, allreduce_of(first, DataType::float32, "x")));
      }
    }
    sum(engine, "x");
  });
}

TEST_CASE("more plans than are kept replace the oldest ones on all hosts") {
  Options options;
  options.cache_capacity = 3;
  run_on(
      some_hosts(),
      [](int, Runtime& engine) {
        std::mt19937 random(7);  // the same on all ranks
        for (int round = 0; round < effort(400, 100); ++round) sum(engine, str("t", random() % 6));
        expect(metric(engine, "plans_replayed") > 0, "some were replayed");
      },
      options);
}

TEST_CASE("a host without room for a table negotiates, and so do the others with it") {
  const HostOf host_of{0, 0, 1, 1};
  run_on(host_of, [](int rank, Runtime& engine) {
    sum(engine, "first");  // allocates what the links need
    if (rank == 2) {
      // Fill the memory, except for what the set's channels need.
      const auto& memory = engine.epoch().layout().host.memory();
      const std::vector<std::size_t> channels((1 + after_channels) * batch_orders,
                                              ChannelMemory::bytes_for(stage_slot_bytes));
      const auto room = HostMemory::reserve(memory, channels);
      try {
        for (std::uint64_t key = std::uint64_t{1} << 40;; ++key) {
          static_cast<void>(memory->publish(key, std::size_t{1} << 17));
        }
      } catch (const std::bad_alloc&) {
      }
    }
    const int set = add_set(engine, {0, 1, 2, 3});
    for (int round = 0; round < 20; ++round) sum(engine, "x", 4, 5, set);
    const std::int64_t replayed = metric(engine, "plans_replayed");
    for (int round = 0; round < 20; ++round) sum(engine, "x", 4, 5, set);
    expect(metric(engine, "plans_replayed") == replayed, "nothing was replayed");
  });
}

TEST_CASE("sets across hosts replay on their own, also when they are made and removed") {
  run_on({0, 0, 1, 1}, [](int rank, Runtime& engine) {
    for (int round = 0; round < 10; ++round) {
      const int low = add_set(engine, {0, 1, 2});
      const int high = add_set(engine, {1, 2, 3});
      for (int step = 0; step < 10; ++step) {
        if (rank >= 1) sum(engine, "h", 3, 5, high);
        sum(engine, "w");
        if (rank <= 2) sum(engine, "l", 3, 5, low);
      }
      remove_set(engine, low);
      remove_set(engine, high);
    }
    expect(metric(engine, "plans_replayed") > 50, "most were replayed");
  });
}

TEST_CASE(
    "an engine whose host has agreed with others does not wake up while it waits for nothing") {
  const HostOf host_of = some_hosts();
  std::barrier together(4);
  run_on(host_of, [&](int, Runtime& engine) {
    for (int round = 0; round < 20; ++round) sum(engine, "x");
    together.arrive_and_wait();
    expect_asleep(engine);
    together.arrive_and_wait();  // no rank leaves while another checks its counters
  });
}

}  // namespace rueda::test::several_hosts_replay_test
