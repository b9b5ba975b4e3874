// Process sets and joins through the whole engine, on ranks that are threads.
#include <catch2/catch.hpp>
#include <chrono>

#include "engine_ranks.h"

namespace rueda::test {

namespace {

using namespace std::chrono_literals;

int add_set(Engine& engine, std::vector<std::int64_t> ranks) {
  return change(engine, Collective::add_process_set, std::move(ranks));
}

void remove_set(Engine& engine, int id) {
  change(engine, Collective::remove_process_set, {id});
}

void sum(Engine& engine, int ranks, int set = 0, const std::string& name = "") {
  std::vector<float> tensor(5, 1);
  finish(submit(engine, allreduce_of(tensor, DataType::float32, name), set));
  expect(tensor[0] == static_cast<float>(ranks), "the sum over the set");
}

}  // namespace

TEST_CASE("overlapping process sets work at the same time") {
  run_engines(3, {}, [](int rank, Engine& engine) {
    const int low = add_set(engine, {0, 1});
    const int high = add_set(engine, {1, 2});
    std::vector<float> in_low(100, 1);
    std::vector<float> in_high(100, 1);
    std::vector<float> in_world(100, 1);
    std::vector<Handle> handles;
    // The rank in both sets and the others submit in different orders.
    if (rank >= 1)
      handles.push_back(submit(engine, allreduce_of(in_high, DataType::float32, "h"), high));
    handles.push_back(submit(engine, allreduce_of(in_world, DataType::float32, "w")));
    if (rank <= 1)
      handles.push_back(submit(engine, allreduce_of(in_low, DataType::float32, "l"), low));
    for (const Handle& handle : handles) finish(handle);
    expect(in_world[99] == 3, "the sum over the world");
    expect(rank > 1 || in_low[99] == 2, "the sum over one set");
    expect(rank < 1 || in_high[99] == 2, "the sum over the other set");
  });
}

TEST_CASE(
    "a process set that is removed while it is in use finishes or fails, and the world goes on") {
  run_engines(3, {}, [](int rank, Engine& engine) {
    for (int round = 0; round < 50; ++round) {
      const int set = add_set(engine, {1, 2});
      std::vector<float> tensor(1000, 1);
      Handle pending;
      if (rank > 0) pending = submit(engine, allreduce_of(tensor, DataType::float32, "x"), set);
      remove_set(engine, set);
      if (rank > 0) {
        try {
          finish(pending);
          expect(tensor[999] == 2, "the sum over the set");
        } catch (const ShutdownError&) {
        }
      }
      sum(engine, 3);
    }
  });
}

TEST_CASE("process sets can be added and removed without end") {
  run_engines(2, {}, [](int, Engine& engine) {
    const int kept = add_set(engine, {0, 1});
    for (int round = 0; round < 600; ++round) remove_set(engine, add_set(engine, {0}));
    sum(engine, 2, kept);
    sum(engine, 2, add_set(engine, {0, 1}));
  });
}

TEST_CASE("after a join, unnamed operations match again") {
  run_engines(3, {}, [](int rank, Engine& engine) {
    for (int step = 0; step < 2 * rank; ++step) {
      std::vector<float> tensor(5, 1);
      finish(submit(engine, allreduce_of(tensor, DataType::float32, "")));
    }
    finish(engine.join(0));
    sum(engine, 3);
    sum(engine, 2 + 1, add_set(engine, {0, 1, 2}));
  });
}

TEST_CASE("a rank that has joined knows the process sets that the others add") {
  run_engines(3, {}, [](int rank, Engine& engine) {
    int set = 1;
    Handle joined;
    if (rank == 2) {
      joined = engine.join(0);
    } else {
      set = add_set(engine, {0, 2});
      joined = engine.join(0);
    }
    finish(joined);
    expect(set == 1, "the first set is number 1");
    if (rank != 1) sum(engine, 2, set);
    expect(add_set(engine, {0, 1, 2}) == 2, "the same number on all ranks");
  });
}

TEST_CASE("unnamed operations of two sets are not taken for one name") {
  Options options;
  options.stall_warning = 0.05;
  options.stall_error = 30;
  run_engines(3, options, [](int rank, Engine& engine) {
    const int set = add_set(engine, {1, 2});
    if (rank == 2) std::this_thread::sleep_for(400ms);  // slow, not wrong
    if (rank > 0) sum(engine, 2, set);
    sum(engine, 3);
  });
}

}  // namespace rueda::test
