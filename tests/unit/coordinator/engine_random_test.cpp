// Random programs on ranks that share memory, all of them or those of each host: whatever is
// replayed, cancelled and negotiated, results and errors are as expected, and nothing hangs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <random>

#include "core/strings.h"
#include "effort.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::engine_random_test {

namespace {

using namespace std::chrono_literals;

constexpr int names = 8;

// What all ranks do in one step, from the same random numbers on every rank.
struct Step {
  struct Operation {
    int name = 0;
    std::size_t length = 1;
    int deviating = -1;  // the rank that submits something else
  };
  enum class Kind { operations, group, join, set } kind = Kind::operations;
  std::vector<Operation> operations;
};

class Program {
 public:
  Program(int size, unsigned seed) : size_(size), random_(seed), lengths_(names, 10) {}

  Step next() {
    Step step;
    const int kind = roll(30);
    step.kind = kind == 0   ? Step::Kind::join
                : kind == 1 ? Step::Kind::set
                : kind < 6  ? Step::Kind::group
                            : Step::Kind::operations;
    const int most = step.kind == Step::Kind::operations ? names : 3;
    const int fixed = roll(3);  // mostly the same operations, so that they are replayed
    for (int name = 0; name < names && static_cast<int>(step.operations.size()) < most; ++name) {
      if (fixed == 0 && roll(2) == 0) continue;
      if (roll(15) == 0)
        lengths_[static_cast<std::size_t>(name)] = static_cast<std::size_t>(1 + roll(3000));
      step.operations.push_back({name, lengths_[static_cast<std::size_t>(name)], -1});
      if (roll(25) == 0) step.operations.back().deviating = roll(size_);
    }
    return step;
  }

 private:
  int roll(int sides) { return static_cast<int>(random_() % static_cast<unsigned>(sides)); }

  int size_;
  std::mt19937 random_;
  std::vector<std::size_t> lengths_;
};

class Rank {
 public:
  Rank(int rank, int size, Runtime& engine, unsigned seed)
      : rank_(rank),
        size_(size),
        engine_(engine),
        random_(seed * 31 + static_cast<unsigned>(rank)) {}

  void perform(const Step& step) {
    switch (step.kind) {
      case Step::Kind::operations: return operations(step);
      case Step::Kind::group: return group(step);
      case Step::Kind::join: return join();
      case Step::Kind::set: return use_set();
    }
  }

 private:
  struct Running {
    Step::Operation operation;
    std::vector<float> data;
    Handle handle;
  };

  bool chance(unsigned of) { return random_() % of == 0; }

  std::vector<float> input(const Step::Operation& operation) const {
    const std::size_t length = operation.length + (operation.deviating == rank_ ? 1 : 0);
    return std::vector<float>(length, static_cast<float>(rank_ + operation.name));
  }

  // Delays as a scheduler or an application would cause them.
  void dawdle() {
    if (chance(10)) std::this_thread::yield();
    if (chance(60)) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 4000));
  }

  void check(const Running& running, const std::string& error_of = "") {
    const auto sum = static_cast<float>(size_ * (size_ - 1) / 2 + size_ * running.operation.name);
    if (running.operation.deviating < 0 && error_of.empty()) {
      finish(running.handle);
      expect(running.data.front() == sum && running.data.back() == sum,
             str("the sum of ", running.operation.name));
      return;
    }
    try {
      finish(running.handle);
    } catch (const MismatchError& error) {
      return;
    }
    throw std::runtime_error("a mismatch was expected");
  }

  void operations(const Step& step) {
    std::vector<Running> all;
    for (const auto& operation : step.operations) all.push_back({operation, input(operation), {}});
    std::shuffle(all.begin(), all.end(), random_);
    for (Running& running : all) {
      std::vector<Submission> submission;
      submission.push_back(
          allreduce_of(running.data, DataType::float32, str("name", running.operation.name)));
      const bool last = &running == &all.back();
      const bool waits = last ? chance(2) : chance(8);
      running.handle = waits ? engine_
                                   .submit_and_wait(0, std::move(submission),
                                                    Clock::now() + (last ? 60s : 100us))
                                   .front()
                             : engine_.submit(0, std::move(submission)).front();
      dawdle();
      if (chance(6)) (void)wait_a_little(all[random_() % all.size()]);
    }
    for (const Running& running : all) check(running);
  }

  bool wait_a_little(const Running& running) {
    if (!running.handle.state()) return false;
    return running.handle.state()->wait(Clock::now() + 50us) == FutexWake::changed;
  }

  void group(const Step& step) {
    if (step.operations.empty()) return;
    std::vector<Running> all;
    bool fails = false;
    for (const auto& operation : step.operations) {
      all.push_back({operation, input(operation), {}});
      fails = fails || operation.deviating >= 0;
    }
    std::vector<Submission> submissions;
    for (Running& running : all) {
      submissions.push_back(
          allreduce_of(running.data, DataType::float32, str("name", running.operation.name)));
      submissions.back().request.group = "group";
      submissions.back().request.group_size = static_cast<int>(all.size());
    }
    const std::vector<Handle> handles = chance(2)
                                            ? engine_.submit_and_wait(0, std::move(submissions))
                                            : engine_.submit(0, std::move(submissions));
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].handle = handles[i];
      check(all[i], fails ? "group" : "");
    }
  }

  void join() {
    for (int step = 0; step < rank_ + 1; ++step) {
      std::vector<float> tensor(10, 3);
      Submission average = allreduce_of(tensor, DataType::float32, "name1", ReduceOp::average);
      finish(engine_.submit_and_wait(0, one(std::move(average))).front());
      expect(tensor[0] == 3, "the average over those who take part");
    }
    finish(engine_.join(0));
  }

  void use_set() {
    const int set = add_set(engine_, {0, 1});
    for (int step = 0; step < 5 && rank_ < 2; ++step) {
      std::vector<float> tensor(10, 1);
      finish(submit(engine_, allreduce_of(tensor, DataType::float32, "name2"), set));
      expect(tensor[9] == 2, "the sum over the set");
      dawdle();
    }
    remove_set(engine_, set);
  }

  int rank_;
  int size_;
  Runtime& engine_;
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("random programs end, and with the right results") {
  // The host of each rank.
  const auto host_of = GENERATE(std::vector<int>{0, 0}, std::vector<int>{0, 0, 0},
                                std::vector<int>{0, 0, 0, 0}, std::vector<int>{0, 0, 1, 1},
                                std::vector<int>{0, 1, 0}, std::vector<int>{1, 0, 2, 0});
  const auto size = static_cast<int>(host_of.size());
  // Even seeds have few plans; multiples of 3 have small batches.
  const unsigned seed = GENERATE(from_range(efforts({1U, 2U, 3U, 4U}, {2U, 3U})));
  Options options;
  options.stall_warning = 0;  // a hang must not end in a stall error
  options.stall_error = 0;
  options.cache_capacity = seed % 2 == 0 ? 5 : 1024;
  options.fusion_threshold = seed % 3 == 0 ? 5000 : 1 << 20;
  std::atomic<std::int64_t> replayed{0};
  CAPTURE(host_of, seed);
  run_engines(
      size, options,
      [&](int rank, Runtime& engine) {
        Program program(size, seed);
        Rank self(rank, size, engine, seed);
        for (int step = 0; step < effort(120, 60); ++step) {
          try {
            self.perform(program.next());
          } catch (const std::exception& error) {
            throw std::runtime_error(str("in step ", step, ": ", error.what()));
          }
        }
        replayed += engine.metrics().values().at("plans_replayed");
      },
      nullptr, Sharing::memory, host_of);
  CHECK(replayed > 0);
}

}  // namespace rueda::test::engine_random_test
