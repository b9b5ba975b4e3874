// Repeated operations on ranks that share memory: replayed without negotiation, and negotiated if
// something differs.
#include <algorithm>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>

#include "core/strings.h"
#include "effort.h"
#include "ranks/engine_ranks.h"
#include "ranks/late_rank.h"
#include "ranks/shuffled_tensors.h"

namespace rueda::test::engine_replay_test {

namespace {

using namespace std::chrono_literals;

void run_sharing(int size, const std::function<void(int, Runtime&)>& body,
                 const Options& options = {}, InprocHub* hub = nullptr) {
  run_engines(size, options, body, hub, Sharing::memory);
}

void sum(Runtime& engine, const std::string& name, int ranks, std::size_t length = 5, int set = 0) {
  std::vector<float> tensor(length, 1);
  finish(run(engine, allreduce_of(tensor, DataType::float32, name), set));
  expect(tensor.back() == static_cast<float>(ranks), "the sum of " + name);
}

std::vector<Submission> group_of(std::vector<std::vector<float>>& tensors,
                                 const std::string& name) {
  std::vector<Submission> group;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    group.push_back(allreduce_of(tensors[i], DataType::float32, str(name, ".", i)));
    group.back().request.group = name;
    group.back().request.group_size = static_cast<int>(tensors.size());
  }
  return group;
}

Submission other_of(Collective collective, std::vector<float>& data, const std::string& name,
                    int ranks) {
  Submission submission = allreduce_of(data, DataType::float32, name);
  submission.request.collective = collective;
  submission.request.op = ReduceOp::sum;
  if (collective != Collective::broadcast) submission.output = nullptr;
  if (collective == Collective::broadcast) submission.request.root = 1;
  if (collective == Collective::alltoall) {
    submission.rows.assign(static_cast<std::size_t>(ranks),
                           static_cast<std::int64_t>(data.size()) / ranks);
  }
  return submission;
}

}  // namespace

TEST_CASE("a repeated allreduce needs no message") {
  const int size = GENERATE(2, 3, 4);
  std::barrier together(size);
  run_sharing(size, [&](int, Runtime& engine) {
    sum(engine, "x", size);
    together.arrive_and_wait();
    const std::int64_t messages = metric(engine, "control_messages_sent");
    together.arrive_and_wait();
    for (int round = 0; round < 200; ++round) sum(engine, "x", size);
    together.arrive_and_wait();
    expect(metric(engine, "control_messages_sent") == messages, "no message");
    expect(metric(engine, "plans_replayed") == 200, "200 rounds");
    expect(metric(engine, "plans_cancelled") == 0, "none cancelled");
    together.arrive_and_wait();
  });
}

TEST_CASE("operations without a name are replayed, with barriers and named ones between") {
  const int size = GENERATE(2, 3, 4);
  std::barrier together(size);
  run_sharing(size, [&](int, Runtime& engine) {
    const auto step = [&](int round) {
      std::vector<float> data(6, 1);
      finish(run(engine, other_of(Collective::barrier, data, "", size)));
      sum(engine, "x", size);
      std::vector<std::int32_t> numbers(3, round);
      finish(run(engine, allreduce_of(numbers, DataType::int32, "")));
      expect(numbers.back() == size * round, "the sum without a name");
      sum(engine, "y", size, 2);
    };
    const auto once_round = static_cast<int>(numbers_of_unnamed / 2);
    for (int round = 0; round < once_round; ++round) step(round);
    together.arrive_and_wait();
    const auto before = engine.metrics().values();
    together.arrive_and_wait();
    for (int round = 0; round < 3 * once_round; ++round) step(round);
    together.arrive_and_wait();
    const auto grown = [&](const std::string& name) {
      return metric(engine, name) - before.at(name);
    };
    expect(grown("control_messages_sent") == 0, "no message");
    expect(grown("plans_replayed") == 4 * 3 * once_round, "all were replayed");
    expect(metric(engine, "plans_cancelled") == 0, "none cancelled");
    together.arrive_and_wait();
  });
}

TEST_CASE("what changes under a number is negotiated again") {
  const int period = GENERATE(1, 7, 9);  // different operations in turn
  run_sharing(3, [&](int, Runtime& engine) {
    for (int i = 0; i < 5 * static_cast<int>(numbers_of_unnamed); ++i) {
      std::vector<float> tensor(static_cast<std::size_t>(1 + i % period), 1);
      finish(run(engine, allreduce_of(tensor, DataType::float32, "")));
      expect(tensor.back() == 3, "the sum");
    }
  });
}

TEST_CASE("every collective is replayed, and right") {
  const int size = GENERATE(2, 3);
  std::barrier together(size);
  run_sharing(size, [&](int rank, Runtime& engine) {
    for (int round = 0; round < 10; ++round) {
      const auto value = static_cast<float>(rank + round);
      const auto all = static_cast<float>(size * (size - 1) / 2 + size * round);
      const std::size_t length = static_cast<std::size_t>(6 * size);
      std::vector<float> data(length, value);
      const Handle scattered =
          run(engine, other_of(Collective::reduce_scatter, data, "scatter", size));
      finish(scattered);
      const Output& part = scattered.state()->output;
      expect(part.shape == Shape{6}, "its part");
      expect(reinterpret_cast<const float*>(part.data.get())[5] == all, "the sum in it");

      std::vector<float> own(static_cast<std::size_t>(rank + 1), value);
      const Handle gathered = run(engine, other_of(Collective::allgather, own, "gather", size));
      finish(gathered);
      const auto* rows = reinterpret_cast<const float*>(gathered.state()->output.data.get());
      expect(gathered.state()->output.shape == Shape{size * (size + 1) / 2}, "all rows");
      expect(rows[0] == static_cast<float>(round), "the first rank's");

      const Handle exchanged = run(engine, other_of(Collective::alltoall, data, "exchange", size));
      finish(exchanged);
      const auto* received = reinterpret_cast<const float*>(exchanged.state()->output.data.get());
      expect(received[6] == static_cast<float>(1 + round), "the second rank's");

      finish(run(engine, other_of(Collective::broadcast, data, "broadcast", size)));
      expect(data[0] == static_cast<float>(1 + round), "the root's");

      Submission barrier;
      barrier.request.name = "barrier";
      barrier.request.collective = Collective::barrier;
      barrier.request.shape = {0};
      finish(run(engine, std::move(barrier)));
    }
    together.arrive_and_wait();
    expect(metric(engine, "plans_replayed") == 5 * 9, "all but the first round");
    together.arrive_and_wait();
  });
}

TEST_CASE("what is small comes along with the ranks' readiness, with the same bits") {
  const int size = GENERATE(from_range(efforts({2, 3, 4}, {2, 4})));
  const DataType dtype = GENERATE(DataType::float32, DataType::float16, DataType::int64);
  const ReduceOp op = GENERATE(from_range(efforts({ReduceOp::sum, ReduceOp::average, ReduceOp::min},
                                                  {ReduceOp::average, ReduceOp::min})));
  std::barrier together(size);
  Options options;
  options.algorithm = "flat";  // regardless of what is fastest here
  const auto body = [&](int rank, Runtime& engine) {
    std::mt19937 random(static_cast<unsigned>(rank));
    for (const std::size_t bytes : {0, 8, 48, 56, 64, 1000, 2048, 2056, 4096, 4104, 16384, 16392}) {
      const auto is_small = static_cast<std::int64_t>(bytes <= 16384);
      std::vector<std::uint8_t> input(bytes);
      for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random() % 128);
      std::vector<std::uint8_t> negotiated;
      const std::int64_t before = metric(engine, "plans_eager");
      for (int round = 0; round < 5; ++round) {
        std::vector<std::uint8_t> output(bytes + 1, 0xab);
        Submission submission = allreduce_of(input, dtype, str("x", bytes), op);
        submission.request.shape = {static_cast<std::int64_t>(bytes / size_of(dtype))};
        submission.output = reinterpret_cast<std::byte*>(output.data());
        finish(run(engine, std::move(submission)));
        expect(output.back() == 0xab, "nothing is written beyond the tensor");
        if (round == 0) negotiated = output;
        expect(output == negotiated, str("the same bits of ", bytes, " bytes"));
      }
      together.arrive_and_wait();
      expect(metric(engine, "plans_eager") == before + 4 * is_small, str(bytes, " bytes"));
      together.arrive_and_wait();
    }
  };
  run_sharing(size, body, options);
}

TEST_CASE("what was sent along is not mixed up when calls change, are cancelled, and come again") {
  const int size = GENERATE(2, 4);
  run_sharing(size, [&](int rank, Runtime& engine) {
    std::mt19937 random(7);  // the same on all ranks
    for (int round = 0; round < effort(400, 100); ++round) {
      const std::string name = str("x", random() % 5);
      const std::size_t length = random() % 8 == 0 ? 20 : 5;  // sometimes another length
      std::vector<float> data(length, static_cast<float>(rank + round));
      const auto all = static_cast<float>(size * (size - 1) / 2 + size * round);
      if (random() % 3 == 0) {
        std::vector<float> other(length, static_cast<float>(rank));
        const Handle first = submit(engine, allreduce_of(data, DataType::float32, name));
        const Handle second = submit(engine, allreduce_of(other, DataType::float32, name + "'"));
        finish(rank % 2 == 0 ? first : second);
        finish(rank % 2 == 0 ? second : first);
        expect(other.back() == static_cast<float>(size * (size - 1) / 2), "the second sum");
      } else {
        finish(run(engine, allreduce_of(data, DataType::float32, name)));
      }
      expect(data.front() == all && data.back() == all, str("the sum of round ", round));
    }
    expect(metric(engine, "plans_eager") > 0, "some were sent along");
  });
}

TEST_CASE("groups and fused batches are replayed as a whole") {
  const int size = 3;
  Options options;
  options.fusion_threshold = 400;  // splits a group into several batches
  std::barrier together(size);
  run_sharing(
      size,
      [&](int, Runtime& engine) {
        std::vector<std::vector<float>> tensors(7, std::vector<float>(30, 1));
        for (int round = 0; round < 20; ++round) {
          for (auto& tensor : tensors) std::fill(tensor.begin(), tensor.end(), 1.0F);
          for (const Handle& handle : engine.submit_and_wait(0, group_of(tensors, "g"))) {
            finish(handle);
          }
          for (const auto& tensor : tensors) expect(tensor[29] == 3, "the sum");
        }
        together.arrive_and_wait();
        expect(metric(engine, "plans_replayed") == 19, "all but the first round");
        together.arrive_and_wait();
      },
      options);
}

TEST_CASE("operations that are in flight together are replayed in any order of submission") {
  const int size = GENERATE(2, 3);
  run_sharing(size, [&](int rank, Runtime& engine) {
    ShuffledTensors shuffled(12, rank);
    // A round is negotiated if a rank is paused between its submissions: try another one.
    const Time deadline = soon();
    const auto none = [&] { return metric(engine, "plans_replayed") == 0; };
    for (int round = 0; round < effort(60, 20) || (none() && Clock::now() < deadline); ++round) {
      shuffled.reduce(engine, size);
    }
    expect(metric(engine, "plans_replayed") > 0, "some were replayed");
  });
}

TEST_CASE("what changes on all ranks is negotiated again") {
  run_sharing(2, [](int, Runtime& engine) {
    for (int round = 0; round < 30; ++round) {
      sum(engine, "x", 2, static_cast<std::size_t>(1 + round / 3));
    }
    expect(metric(engine, "plans_replayed") == 20, "two of three");
  });
}

TEST_CASE("what changes on one rank is a mismatch, as ever") {
  const int size = GENERATE(2, 3);
  run_sharing(size, [&](int rank, Runtime& engine) {
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < 3; ++i) sum(engine, "x", size);
      std::vector<float> tensor(rank == 1 ? 7 : 5, 1);
      const std::string message =
          error_of<MismatchError>(run(engine, allreduce_of(tensor, DataType::float32, "x")));
      expect(message.find("shape differs") != std::string::npos, message);
    }
    sum(engine, "x", size);
  });
}

TEST_CASE("a rank that waits for a member of a fused plan gets it without the others") {
  std::barrier together(2);
  run_sharing(2, [&](int, Runtime& engine) {
    std::vector<std::vector<float>> tensors(2, std::vector<float>(30, 1));
    for (int round = 0; round < 50; ++round) {
      together.arrive_and_wait();
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < 2; ++i) {
        handles.push_back(submit(engine, allreduce_of(tensors[i], DataType::float32, str("t", i))));
      }
      for (const Handle& handle : handles) finish(handle);
      together.arrive_and_wait();
      sum(engine, "t0", 2, 30);
      sum(engine, "t1", 2, 30);
    }
  });
}

TEST_CASE("an operation of a plan that is submitted after a pause is negotiated") {
  run_sharing(2, [](int rank, Runtime& engine) {
    std::vector<std::vector<float>> tensors(2, std::vector<float>(30, 1));
    for (int round = 0; round < 5; ++round) {
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < 2; ++i) {
        handles.push_back(submit(engine, allreduce_of(tensors[i], DataType::float32, str("t", i))));
        if (round == 3 && rank == 1) std::this_thread::sleep_for(20ms);
      }
      for (const Handle& handle : handles) finish(handle);
    }
  });
}

TEST_CASE("a rank that joins contributes the identity to what was replayed before") {
  const int size = GENERATE(2, 3);
  run_sharing(size, [&](int rank, Runtime& engine) {
    for (int epoch = 0; epoch < 5; ++epoch) {
      for (int step = 0; step < 5 + 3 * rank; ++step) {
        std::vector<float> tensor(5, 3);
        finish(run(engine, allreduce_of(tensor, DataType::float32, "g", ReduceOp::average)));
        expect(tensor[0] == 3, "the average over those who take part");
      }
      const Handle joined = engine.join(0);
      finish(joined);
      expect(joined.state()->output.last_joined_rank >= 0, "who was last");
      for (int step = 0; step < 3; ++step) sum(engine, "after", size);
    }
    expect(metric(engine, "plans_replayed") > 0, "some were replayed");
  });
}

TEST_CASE("a rank that shuts down fails what was about to be replayed") {
  run_sharing(3, [](int rank, Runtime& engine) {
    for (int round = 0; round < 5; ++round) sum(engine, "x", 3);
    if (rank == 1) return;
    std::vector<float> tensor(5, 1);
    const std::string message =
        error_of<ShutdownError>(run(engine, allreduce_of(tensor, DataType::float32, "x")));
    expect(message.find("rank 1 has shut down") != std::string::npos, message);
  });
}

TEST_CASE("a rank that dies is named by those who wait for it to replay") {
  InprocHub hub(3);
  run_sharing(
      3,
      [&](int rank, Runtime& engine) {
        std::string message;
        for (int round = 0; message.empty(); ++round) {
          if (rank == 2 && round == 5) return hub.kill(2, "killed by the test");
          try {
            sum(engine, "x", 3);
          } catch (const PeerLostError& error) {
            message = error.what();
          }
        }
        expect(message.find("rank 2") != std::string::npos, message);
      },
      {}, &hub);
}

TEST_CASE("a tensor that was replayed stalls with an error that names the ranks") {
  Options options;
  options.stall_warning = 0.1;
  options.stall_error = 1;
  const int late = GENERATE(0, 1);
  LateRank late_rank(2, late);
  run_sharing(
      2,
      [&](int rank, Runtime& engine) {
        for (int round = 0; round < 5; ++round) sum(engine, "x", 2);
        const std::string message = late_rank.stall(rank, engine, "x", 5);
        expect(message.find(str("missing on rank ", late)) != std::string::npos, message);
        sum(engine, "x", 2);
        sum(engine, "x", 2);
        expect(metric(engine, "stall_warnings") > 0, "a warning before the error");
      },
      options);
}

TEST_CASE("a name that is submitted again while it waits to be replayed fails on every rank") {
  run_sharing(2, [](int rank, Runtime& engine) {
    for (int round = 0; round < 20; ++round) {
      for (int i = 0; i < 2; ++i) sum(engine, "x", 2);
      std::vector<float> first(5, 1);
      std::vector<float> second(5, 1);
      if (rank == 0) {
        const Handle pending = submit(engine, allreduce_of(first, DataType::float32, "x"));
        error_of<DuplicateNameError>(run(engine, allreduce_of(second, DataType::float32, "x")));
        sum(engine, "go", 2);
        error_of<DuplicateNameError>(pending);
      } else {
        sum(engine, "go", 2);
        error_of<DuplicateNameError>(run(engine, allreduce_of(first, DataType::float32, "x")));
      }
    }
    sum(engine, "x", 2);
  });
}

TEST_CASE("more plans than are kept replace the oldest ones") {
  Options options;
  options.cache_capacity = 3;
  run_sharing(
      3,
      [](int, Runtime& engine) {
        std::mt19937 random(7);  // the same on all ranks
        for (int round = 0; round < effort(400, 100); ++round)
          sum(engine, str("t", random() % 6), 3);
        expect(metric(engine, "plans_replayed") > 0, "some were replayed");
      },
      options);
}

TEST_CASE("without a cache nothing is replayed") {
  Options options;
  options.cache_capacity = 0;
  run_sharing(
      2,
      [](int, Runtime& engine) {
        for (int round = 0; round < 10; ++round) sum(engine, "x", 2);
        expect(metric(engine, "plans_replayed") == 0, "nothing was replayed");
      },
      options);
}

TEST_CASE("process sets replay on their own, also when they are made and removed") {
  run_sharing(3, [](int rank, Runtime& engine) {
    for (int round = 0; round < 10; ++round) {
      const int low = add_set(engine, {0, 1});
      const int high = add_set(engine, {1, 2});
      for (int step = 0; step < 10; ++step) {
        if (rank >= 1) sum(engine, "h", 2, 5, high);
        sum(engine, "w", 3);
        if (rank <= 1) sum(engine, "l", 2, 5, low);
      }
      remove_set(engine, low);
      remove_set(engine, high);
    }
    expect(metric(engine, "plans_replayed") > 50, "most were replayed");
  });
}

TEST_CASE("an engine that waits for nothing does not wake up, whatever was replayed") {
  std::barrier together(3);
  run_sharing(3, [&](int, Runtime& engine) {
    for (int round = 0; round < 20; ++round) sum(engine, "x", 3);
    together.arrive_and_wait();
    expect_asleep(engine);
    together.arrive_and_wait();  // no rank leaves while another checks its counters
  });
}

}  // namespace rueda::test::engine_replay_test
