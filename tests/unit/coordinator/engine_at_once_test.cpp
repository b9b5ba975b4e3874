// Repeated blocking calls of small allreduces: done without a submission if all ranks call within
// a short time, and by submissions otherwise or if the calls differ.
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/strings.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::engine_at_once_test {

namespace {

using Is = Runtime::Repetition::Is;

void run_sharing(int size, const std::function<void(int, Runtime&)>& body,
                 const Options& options = {}) {
  run_engines(size, options, body, nullptr, Sharing::memory);
}

RepeatedCall call_of(std::vector<float>& data, const std::vector<std::int64_t>& shape,
                     std::string_view name) {
  auto* const memory = reinterpret_cast<std::byte*>(data.data());
  return {.name = name,
          .input = memory,
          .output = memory,
          .dtype = DataType::float32,
          .shape = shape,
          .op = ReduceOp::sum};
}

Submission submission_of(const RepeatedCall& call) {
  Submission submission;
  submission.request.name = call.name;
  submission.request.dtype = call.dtype;
  submission.request.op = call.op;
  submission.request.prescale = call.prescale;
  submission.request.postscale = call.postscale;
  submission.request.shape.assign(call.shape.begin(), call.shape.end());
  submission.input = call.input;
  submission.output = call.output;
  return submission;
}

// Like a blocking call. Returns the result of the first attempt.
Is sum(Runtime& engine, const std::string& name, int ranks, std::size_t length = 5, int set = 0) {
  std::vector<float> data(length, 1);
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(length)};
  const auto tried = engine.repeat(set, call_of(data, shape, name), [] { return soon(); });
  if (tried.is == Is::begun) finish(tried.handle);
  if (tried.is == Is::not_tried) {
    finish(run(engine, allreduce_of(data, DataType::float32, name), set));
  }
  expect(data.front() == static_cast<float>(ranks) && data.back() == static_cast<float>(ranks),
         "the sum of " + name);
  return tried.is;
}

void wait_for(const std::atomic<bool>& flag) {
  await([&] { return flag.load(); }, "the other rank's sign");
}

}  // namespace

TEST_CASE("a repeated call that all ranks make is counted as any other") {
  const int size = GENERATE(2, 3, 4);
  constexpr int rounds = 500;
  std::barrier together(size);
  std::atomic<int> at_once{0};
  run_sharing(size, [&](int, Runtime& engine) {
    expect(sum(engine, "x", size) == Is::not_tried, "the first is negotiated");
    together.arrive_and_wait();
    const auto before = engine.metrics().values();
    together.arrive_and_wait();
    for (int round = 0; round < rounds; ++round) {
      if (sum(engine, "x", size) == Is::done) ++at_once;
    }
    together.arrive_and_wait();
    const auto after = engine.metrics().values();
    for (const char* counted : {"tensors_submitted", "tensors_completed", "plans_replayed",
                                "plans_eager", "allreduce_batches", "allreduce_tensors"}) {
      expect(after.at(counted) - before.at(counted) == rounds, counted);
    }
    for (const char* counted : {"allreduce_tensor_bytes", "allreduce_bytes_reduced"}) {
      expect(after.at(counted) - before.at(counted) == rounds * 20, counted);
    }
    expect(after.at("tensors_failed") == 0, "none has failed");
    expect(after.at("control_messages_sent") == before.at("control_messages_sent"), "no message");
    together.arrive_and_wait();
  });
  // The last rank of a round need not wait.
  CHECK(at_once > 0);
}

namespace {

// A collective with different rows on each rank if it allows that; the caller owns the result.
struct Exchange {
  Exchange(Collective its_kind, int rank, int ranks, int round = 0)
      : kind(its_kind), shape{5 * ranks, 2}, root(ranks - 1) {
    std::int64_t rows = 5 * ranks;
    if (kind == Collective::allgather) {
      shape.front() = rank;
      rows = ranks * (ranks - 1) / 2;
    } else if (kind == Collective::reduce_scatter) {
      rows = 5;
    }
    if (kind == Collective::alltoall) {
      // In every other round, the last rank has more rows than can be sent along.
      shape.front() = rank == ranks - 1 && round % 2 == 1 ? 4000 : 2 * ranks;
      rows = 0;
      for (int other = 0; other < ranks; ++other) {
        rows += other == ranks - 1 && round % 2 == 1 ? 4000 / ranks : 2;
      }
      if (shape.front() == 4000) shape.front() = 4000 / ranks * ranks;
    }
    input.assign(static_cast<std::size_t>(shape.front() * 2), static_cast<float>(rank));
    result.resize(static_cast<std::size_t>(rows * 2));
    if (kind == Collective::broadcast) result = input;
  }
  [[nodiscard]] bool is_broadcast() const { return kind == Collective::broadcast; }
  [[nodiscard]] std::size_t result_bytes() const {
    return is_broadcast() ? 0 : result.size() * sizeof(float);
  }

  RepeatedCall call() {
    auto* const output = reinterpret_cast<std::byte*>(result.data());
    const auto* const data = reinterpret_cast<const std::byte*>(input.data());
    return {.name = name_of(kind),
            .collective = kind,
            .input = is_broadcast() ? output : data,
            .output = output,
            .output_bytes = result_bytes(),
            .dtype = DataType::float32,
            .shape = shape,
            .root = is_broadcast() ? root : -1,
            .received = &received};
  }
  Submission submission() {
    const RepeatedCall same = call();
    Submission made = submission_of(same);
    made.request.collective = kind;
    made.request.root = same.root;
    made.request.output_bytes = same.output_bytes;
    if (kind == Collective::alltoall) {
      made.rows.assign(static_cast<std::size_t>(root) + 1, shape.front() / (root + 1));
    }
    return made;
  }
  void check(int ranks) const {
    if (kind == Collective::broadcast) {
      return expect(result.back() == static_cast<float>(root), "what the root has");
    }
    const int sum = ranks * (ranks - 1) / 2;
    if (kind == Collective::reduce_scatter) {
      return expect(result.back() == static_cast<float>(sum), "the sum");
    }
    // In an allgather, rank 0 contributes no rows.
    const auto first = kind == Collective::alltoall ? 0.0F : 1.0F;
    expect(result.back() == static_cast<float>(ranks - 1) && result[1] == first, "what all have");
  }

  Collective kind;
  std::vector<std::int64_t> shape;
  int root;
  std::vector<float> input;
  std::vector<float> result;
  std::vector<std::int64_t> received;
};

}  // namespace

TEST_CASE("repeated exchanges bring and count what those do that are submitted") {
  const int size = GENERATE(2, 3, 4);
  const auto collective = GENERATE(Collective::allgather, Collective::broadcast,
                                   Collective::reduce_scatter, Collective::alltoall);
  CAPTURE(size, collective);
  constexpr int rounds = 200;
  std::barrier together(size);
  std::atomic<int> at_once{0};
  run_sharing(size, [&](int rank, Runtime& engine) {
    const auto counted = [&](bool tries) {
      together.arrive_and_wait();
      const auto before = engine.metrics().values();
      together.arrive_and_wait();
      for (int round = 0; round < rounds; ++round) {
        Exchange exchange(collective, rank, size, round);
        const auto tried = tries ? engine.repeat(0, exchange.call(), [] { return soon(); })
                                 : Runtime::Repetition{};
        if (tried.is == Is::done) ++at_once;
        if (tried.is == Is::begun) finish(tried.handle);
        if (tried.is == Is::not_tried) finish(run(engine, exchange.submission()));
        exchange.check(size);
      }
      together.arrive_and_wait();
      const auto after = engine.metrics().values();
      std::map<std::string, std::int64_t> difference;
      for (const auto& [name, value] : after) {
        const bool is_of_it = name.starts_with(str(name_of(collective), "_")) ||
                              name.starts_with("tensors_") || name.starts_with("plans_");
        if (is_of_it) difference[name] = value - before.at(name);
      }
      return difference;
    };
    for (int round = 0; round < 3; ++round) {
      finish(run(engine, Exchange(collective, rank, size).submission()));
    }
    const auto submitted = counted(false);
    for (const auto& [name, value] : counted(true)) {
      expect(value == submitted.at(name), str(name, ": ", value, ", not ", submitted.at(name)));
    }
    expect(submitted.at(str(name_of(collective), "_batches")) == rounds, "each is counted");
    together.arrive_and_wait();
  });
  CHECK(at_once > 0);
}

TEST_CASE("who comes first waits for who comes late") {
  constexpr int size = 3;
  std::barrier together(size);
  std::array<std::atomic<bool>, 20> waiting{};
  run_sharing(size, [&](int rank, Runtime& engine) {
    sum(engine, "x", size);
    together.arrive_and_wait();
    for (auto& begun : waiting) {
      if (rank != 0) {
        wait_for(begun);
        sum(engine, "x", size);
      } else {
        std::vector<float> data(5, 1);
        const std::vector<std::int64_t> shape{5};
        int calls = 0;
        const auto wait = [&] {
          ++calls;
          begun = true;
          return soon();
        };
        const auto tried = engine.repeat(0, call_of(data, shape, "x"), wait);
        if (tried.is == Is::not_tried) {  // falls back to a submission
          begun = true;
          finish(run(engine, allreduce_of(data, DataType::float32, "x")));
        } else {
          expect(calls == 1, "it has begun to wait, and said so once");
          if (tried.is == Is::begun) finish(tried.handle);
        }
        expect(data.back() == size, "the sum");
      }
      together.arrive_and_wait();
    }
    expect(metric(engine, "plans_cancelled") == 0, "none cancelled");
    together.arrive_and_wait();
  });
}

TEST_CASE("a caller that gives up leaves the operation to go on") {
  std::barrier together(2);
  std::atomic<bool> given_up{false};
  run_sharing(2, [&](int rank, Runtime& engine) {
    sum(engine, "x", 2);
    together.arrive_and_wait();
    if (rank == 1) {
      wait_for(given_up);
      sum(engine, "x", 2);
    } else {
      std::vector<float> data(5, 1);
      const std::vector<std::int64_t> shape{5};
      std::optional<Handle> handle;
      await(
          [&] {
            const auto tried =
                engine.repeat(0, call_of(data, shape, "x"), [] { return Clock::now(); });
            if (tried.is == Is::begun) handle = tried.handle;
            return handle.has_value();
          },
          "a call that begins to wait");
      expect(!handle->done(), "the other has not come");
      given_up = true;
      finish(*handle);
      expect(data.back() == 2, "the sum");
    }
    together.arrive_and_wait();
  });
}

TEST_CASE("what differs from what was done before is refused on all ranks") {
  std::barrier together(2);
  run_sharing(2, [&](int rank, Runtime& engine) {
    for (int round = 0; round < 20; ++round) {
      const std::string name = str("x", round);
      for (int i = 0; i < 3; ++i) sum(engine, name, 2);
      together.arrive_and_wait();
      std::vector<float> data(5, 1);
      const std::vector<std::int64_t> shape{5};
      RepeatedCall call = call_of(data, shape, name);
      if (rank == 1) {
        if (round % 4 == 0) call.op = ReduceOp::max;
        if (round % 4 == 1) call.prescale = 2;
        if (round % 4 == 2) call.postscale = 2;
        const std::vector<std::int64_t> other{1, 5};
        if (round % 4 == 3) call.shape = other;
        expect(engine.repeat(0, call, [] { return soon(); }).is == Is::not_tried, "it differs");
        (void)error_of<MismatchError>(run(engine, submission_of(call)));
      } else {
        const auto tried = engine.repeat(0, call, [] { return soon(); });
        const Handle handle =
            tried.is == Is::begun ? tried.handle : run(engine, submission_of(call));
        (void)error_of<MismatchError>(handle);
      }
      together.arrive_and_wait();
    }
  });
}

TEST_CASE("calls without a name keep their numbers, however each rank makes them") {
  constexpr int size = 3;
  run_sharing(size, [&](int rank, Runtime& engine) {
    for (int i = 0; i < 3 * static_cast<int>(numbers_of_unnamed); ++i) {
      std::vector<float> data(2, static_cast<float>(i));
      const std::vector<std::int64_t> shape{2};
      const bool tries = (i + rank) % 3 != 0;
      const auto tried = tries ? engine.repeat(0, call_of(data, shape, ""), [] { return soon(); })
                               : Runtime::Repetition{};
      if (tried.is == Is::begun) finish(tried.handle);
      if (tried.is == Is::not_tried) {
        finish(run(engine, allreduce_of(data, DataType::float32, "")));
      }
      expect(data.back() == static_cast<float>(size * i), "the sum of the same call");
    }
  });
}

TEST_CASE("while anything else of the set is under way, calls are submitted") {
  std::barrier together(2);
  std::atomic<bool> tried{false};
  run_sharing(2, [&](int rank, Runtime& engine) {
    for (int i = 0; i < 3; ++i) {
      sum(engine, "x", 2);
      sum(engine, "y", 2);
    }
    together.arrive_and_wait();
    std::vector<float> data(5, 1);
    if (rank == 0) {
      const Handle pending = submit(engine, allreduce_of(data, DataType::float32, "y"));
      expect(sum(engine, "x", 2) == Is::not_tried, "y is under way");
      tried = true;
      finish(pending);
    } else {
      sum(engine, "x", 2);
      wait_for(tried);
      sum(engine, "y", 2);
    }
    together.arrive_and_wait();
  });
}

TEST_CASE("sets of their own repeat, and end") {
  std::barrier together(3);
  std::atomic<int> at_once{0};
  run_sharing(3, [&](int rank, Runtime& engine) {
    const int set = add_set(engine, {0, 2});
    if (rank != 1) {
      for (int i = 0; i < 200; ++i) {
        if (sum(engine, "x", 2, 5, set) == Is::done) ++at_once;
      }
    } else {
      expect(engine.repeat(set, {.name = "x"}, [] { return soon(); }).is == Is::not_tried,
             "it is no member");
    }
    together.arrive_and_wait();
    remove_set(engine, set);
    std::vector<float> data(5, 1);
    const std::vector<std::int64_t> shape{5};
    expect(engine.repeat(set, call_of(data, shape, "x"), [] { return soon(); }).is == Is::not_tried,
           "the set is gone");
    together.arrive_and_wait();
  });
  CHECK(at_once > 0);
}

TEST_CASE("a rank that has left fails who repeats") {
  std::barrier together(2);
  std::atomic<bool> waiting{false};
  run_sharing(2, [&](int rank, Runtime& engine) {
    sum(engine, "x", 2);
    together.arrive_and_wait();
    if (rank == 1) {
      wait_for(waiting);
      engine.shutdown();
      return;
    }
    std::vector<float> data(5, 1);
    const std::vector<std::int64_t> shape{5};
    const auto tried = engine.repeat(0, call_of(data, shape, "x"), [&] {
      waiting = true;
      return soon();
    });
    waiting = true;
    const Handle handle = tried.is == Is::begun
                              ? tried.handle
                              : run(engine, allreduce_of(data, DataType::float32, "x"));
    (void)error_of<ShutdownError>(handle);
    expect(engine.repeat(0, call_of(data, shape, "x"), [] { return soon(); }).is == Is::not_tried,
           "nothing is repeated after the end");
  });
}

TEST_CASE("what is to be seen step by step is submitted") {
  std::barrier together(2);
  const std::string path = str("/tmp/rueda-at-once-", ::getpid(), ".json");
  run_sharing(2, [&](int, Runtime& engine) {
    for (int i = 0; i < 3; ++i) sum(engine, "x", 2);
    together.arrive_and_wait();
    engine.timeline().open(path + ".%r").throw_if_error();
    expect(sum(engine, "x", 2) == Is::not_tried, "a timeline is written");
    engine.timeline().close();
    together.arrive_and_wait();
    ::unlink(str(path, ".", engine.topology().rank).c_str());
  });
}

}  // namespace rueda::test::engine_at_once_test
