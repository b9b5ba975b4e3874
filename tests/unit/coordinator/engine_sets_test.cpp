// Process sets and joins through the whole engine, on ranks that are threads.
#include <barrier>
#include <catch2/catch.hpp>
#include <chrono>
#include <numeric>
#include <vector>

#include "api/persistent_kinds.h"
#include "effort.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::engine_sets_test {

namespace {

using namespace std::chrono_literals;

void sum(Runtime& engine, int ranks, int set = 0, const std::string& name = "") {
  std::vector<float> tensor(5, 1);
  finish(submit(engine, allreduce_of(tensor, DataType::float32, name), set));
  expect(tensor[0] == static_cast<float>(ranks), "the sum over the set");
}

Submission adding_of(std::vector<int> ranks) {
  Submission submission;
  submission.request.collective = Collective::add_process_set;
  submission.request.set_ranks = std::move(ranks);
  return submission;
}

Submission removing_of(int id) {
  Submission submission;
  submission.request.collective = Collective::remove_process_set;
  submission.request.set_id = id;
  return submission;
}

}  // namespace

TEST_CASE("overlapping process sets work at the same time") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
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
  run_engines(3, {}, [](int rank, Runtime& engine) {
    for (int round = 0; round < effort(50, 20); ++round) {
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

TEST_CASE("sets change on all ranks where some have offered theirs to a world that is not formed") {
  std::barrier together(2);
  run_engines(2, {}, [&](int rank, Runtime& engine) {
    const int kept = add_set(engine, {0, 1});
    const int removed = add_set(engine, {0, 1});
    if (rank == 1) (void)engine.process_sets().offer();
    together.arrive_and_wait();
    const Handle adding = submit(engine, adding_of({0, 1}));
    const Handle removing = submit(engine, removing_of(removed));
    const std::vector<int> ids{0, kept, removed + 1};
    if (rank == 0) {
      finish(adding);
      finish(removing);
    } else {
      await([&] { return engine.process_sets().ids() == ids; }, "the change");
      sum(engine, 2);
      expect(!adding.done() && !removing.done(), "which world goes on is not known yet");
    }
    if (rank == 0) sum(engine, 2);
    if (rank == 1) engine.sets().take_back();
    finish(adding);
    finish(removing);
    expect(adding.state()->output.process_set == ids.back(), "its number");
    expect(engine.process_sets().ids() == ids, "the sets");
    sum(engine, 2, ids.back());
  });
}

TEST_CASE("who changes sets that are offered to a world is not told where that one goes on") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    if (rank == 1) (void)engine.process_sets().offer();
    sum(engine, 2);
    const Handle adding = submit(engine, adding_of({0, 1}));
    if (rank == 0) finish(adding);
    if (rank == 1) await([&] { return engine.process_sets().ids().size() == 2; }, "the set");
    sum(engine, 2);
    engine.shutdown();
    if (rank == 1) error_of<ShutdownError>(adding);
  });
}

TEST_CASE("process sets can be added and removed without end") {
  run_engines(2, {}, [](int, Runtime& engine) {
    const int kept = add_set(engine, {0, 1});
    for (int round = 0; round < effort(600, 60); ++round) remove_set(engine, add_set(engine, {0}));
    sum(engine, 2, kept);
    sum(engine, 2, add_set(engine, {0, 1}));
  });
}

TEST_CASE("what all have submitted to a set before they remove it is done") {
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  // Unnamed operations wait for each other if they outnumber the automatic names.
  const int count = GENERATE(1, 300);
  const bool named = count == 1;
  run_engines(
      6, {},
      [&](int rank, Runtime& engine) {
        for (int round = 0; round < (named ? effort(100, 20) : 3); ++round) {
          const int set = add_set(engine, {0, 1, 2, 3, 4, 5});
          std::vector<std::vector<float>> tensors(static_cast<std::size_t>(count),
                                                  std::vector<float>(3, 1));
          std::vector<Handle> handles;
          if (round % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(100 * rank));
          for (auto& tensor : tensors) {
            handles.push_back(
                submit(engine, allreduce_of(tensor, DataType::float32, named ? "x" : ""), set));
          }
          remove_set(engine, set);
          for (const Handle& handle : handles) finish(handle);
          for (const auto& tensor : tensors) expect(tensor.back() == 6, "the sum");
        }
      },
      nullptr, sharing);
}

TEST_CASE("a set that is removed ends where a rank waits for what others have not submitted") {
  run_engines(2, {}, [&](int rank, Runtime& engine) {
    const int set = add_set(engine, {0, 1});
    std::vector<std::vector<float>> tensors(300, std::vector<float>(3, 1));
    std::vector<Handle> handles;
    for (std::size_t i = 0; i < (rank == 0 ? 300 : 5); ++i) {
      handles.push_back(submit(engine, allreduce_of(tensors[i], DataType::float32, ""), set));
    }
    remove_set(engine, set);
    for (std::size_t i = 0; i < handles.size(); ++i) {
      if (i < 5) finish(handles[i]);
      if (i >= 5) error_of<ShutdownError>(handles[i]);
    }
  });
}

TEST_CASE("as many process sets as are promised work at once, and one more is an error of all") {
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  const int ranks = GENERATE(range(2, effort(5, 3), 2));
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  run_engines(
      ranks, {},
      [&](int, Runtime& engine) {
        std::vector<int> sets;
        bool refused = false;
        while (!refused) {
          try {
            sets.push_back(add_set(engine, all));
          } catch (const UnsupportedError&) {
            refused = true;
          }
          expect(sets.size() < process_set_limit, "there is a limit");
        }
        expect(sets.size() == process_set_limit - 1, "the world and all others");  // counts as one
        for (const int set : sets) sum(engine, ranks, set);
        sum(engine, ranks);
        remove_set(engine, sets[5]);
        sum(engine, ranks, add_set(engine, all));
      },
      nullptr, sharing);
}

// Fills this rank's control memory.
void fill(HostMemory& memory) {
  try {
    for (std::uint64_t key = std::uint64_t{1} << 40;; ++key) {
      static_cast<void>(memory.publish(key, 1));
    }
  } catch (const std::bad_alloc&) {
  }
}

TEST_CASE("a group for which a rank has no room is none there, whatever others say in it") {
  constexpr int group = first_formed;
  std::atomic<bool> done{false};
  run_engines(
      2, {},
      [&](int rank, Runtime& engine) {
        if (rank == 1) {
          expect_ok(engine.sets().form(group, {0, 1}), "the group");
          std::vector<float> one(1, 1);
          const Handle waiting = submit(engine, allreduce_of(one, DataType::float32, "x"), group);
          await([&] { return done.load(); }, "what the other says");
          expect_ok(engine.sets().destroy(group), "the end");
          return;
        }
        fill(*engine.epoch().layout().host.memory());
        const Status refused = engine.sets().form(group, {0, 1});
        expect(refused.code() == ErrorCode::unsupported, refused.to_string());
        await([&] { return metric(engine, "control_messages_dropped") > 0; }, "what is dropped");
        expect(engine.process_sets().existed(group), "its number is used");
        done = true;
      },
      nullptr, Sharing::memory);
}

TEST_CASE("what one rank has no room for is an error of all, and the world goes on") {
  run_engines(
      3, {},
      [](int rank, Runtime& engine) {
        const int before = add_set(engine, {0, 1, 2});
        if (rank == 1) fill(*engine.epoch().layout().host.memory());
        const auto error_of = [](const std::function<void()>& call) -> std::string {
          try {
            call();
          } catch (const UnsupportedError& error) {
            return error.what();
          }
          return "none";
        };
        const std::string of_set = error_of([&] { add_set(engine, {0, 1}); });
        expect(of_set.find("rank 1 has no room for another process set") != std::string::npos,
               of_set);
        const std::shared_ptr<Runtime> own(std::shared_ptr<void>(), &engine);
        float one = 1;
        const std::string of_run = error_of([&] {
          const auto run = PersistentAgreement(own, {&one, {1}, DataType::float32}, &one, {});
          finish(run.handle());
        });
        expect(of_run.find("rank 1 has no room for another persistent") != std::string::npos,
               of_run);
        sum(engine, 3);
        sum(engine, 3, before);
        // A removed set's memory is freed once all ranks have shown that they know of the removal.
        remove_set(engine, before);
        bool has_room = false;
        for (int round = 0; round < 20; ++round) {
          sum(engine, 3);
          if (rank != 1 || has_room) continue;
          const Status formed = engine.sets().form(first_formed_set + 7 + round, {1});
          has_room = formed.ok();
          expect(has_room || formed.code() == ErrorCode::unsupported, formed.to_string());
        }
        expect(rank != 1 || has_room, "room for another set");
      },
      nullptr, Sharing::memory);
}

template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE(
    "numbers of sets that only their members know come from plain ranges, which are checked") {
  CHECK(group_number(0, 0) == first_formed_set);
  for (const int slot : {0, 1, process_set_limit - 1}) {
    for (const int generation : {0, 1, group_generations - 1}) {
      CHECK(group_slot({group_number(slot, generation)}) == slot);
      CHECK(group_number(slot, generation) >= first_formed_set);
    }
  }
  CHECK(group_number(process_set_limit - 1, 0) < group_number(0, 1));
  for (const int slot : {-1, process_set_limit}) {
    const std::string text = refusal_of([&] { (void)group_number(slot, 0); });
    CHECK(text.find("the slot must be from 0 to 510") != std::string::npos);
  }
  for (const int generation : {-1, group_generations}) {
    const std::string text = refusal_of([&] { (void)group_number(0, generation); });
    CHECK(text.find("the generation must be from 0 to 1999999") != std::string::npos);
  }
  CHECK(refusal_of([] { (void)group_slot({5}); }).find("is not a group") != std::string::npos);
}

TEST_CASE("a slot has one set at a time, and a number is used once") {
  run_engines(2, {}, [](int, Runtime& engine) {
    const int first = group_number(17, 0);
    expect(engine.sets().form(first, {0, 1}).ok(), "the slot is free");
    const Status taken = engine.sets().form(group_number(17, 1), {0, 1});
    expect(taken.code() == ErrorCode::invalid_argument, "the slot is taken");
    expect(taken.to_string().find("slot, 17 of 0 to 510") != std::string::npos, taken.to_string());
    expect(engine.sets().form(group_number(18, 0), {0, 1}).ok(), "another slot");
    const Status beyond = engine.sets().form(end_of_formed, {0, 1});
    expect(beyond.code() == ErrorCode::invalid_argument, beyond.to_string());
    sum(engine, 2, first);
    sum(engine, 2, group_number(18, 0));
    expect(engine.sets().destroy(first).ok(), "ends");
    const Status again = engine.sets().form(first, {0, 1});
    expect(again.to_string().find("used before") != std::string::npos, again.to_string());
    expect(engine.sets().form(group_number(17, 1), {0, 1}).ok(), "the slot is free again");
    sum(engine, 2, group_number(17, 1));
  });
}

TEST_CASE("after a join, unnamed operations match again") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
    for (int step = 0; step < 2 * rank; ++step) {
      std::vector<float> tensor(5, 1);
      finish(submit(engine, allreduce_of(tensor, DataType::float32, "")));
    }
    finish(engine.join(0));
    sum(engine, 3);
    sum(engine, 2 + 1, add_set(engine, {0, 1, 2}));
  });
}

TEST_CASE("more operations without a name can be in flight than there are numbers") {
  const Sharing sharing = GENERATE(Sharing::nothing, Sharing::memory);
  const bool joins = GENERATE(false, true);
  run_engines(
      3, {},
      [&](int rank, Runtime& engine) {
        constexpr int rounds = effort(3, 2);
        constexpr std::size_t count = 2 * numbers_of_unnamed + 5;
        for (int round = 0; round < rounds; ++round) {
          std::vector<std::vector<float>> tensors(count);
          std::vector<Handle> handles;
          for (std::size_t i = 0; i < count; ++i) {
            tensors[i].assign(1 + i % 4, static_cast<float>(i));
            handles.push_back(submit(engine, allreduce_of(tensors[i], DataType::float32, "")));
          }
          if (joins && round + 1 == rounds) finish(engine.join(0));
          if (rank == 1) std::reverse(handles.begin(), handles.end());
          for (const Handle& handle : handles) finish(handle);
          for (std::size_t i = 0; i < count; ++i) {
            expect(tensors[i].back() == static_cast<float>(3 * i), "the sum of its number");
          }
        }
      },
      nullptr, sharing);
}

TEST_CASE("ranks that differ under a number that has come round again all hear of it") {
  run_engines(
      2, {},
      [](int rank, Runtime& engine) {
        for (std::uint64_t i = 0; i < numbers_of_unnamed + 3; ++i) sum(engine, 2);
        std::vector<float> tensor(rank == 0 ? 4 : 6, 1);
        try {
          finish(submit(engine, allreduce_of(tensor, DataType::float32, "")));
          throw std::runtime_error("expected a mismatch");
        } catch (const MismatchError&) {
        }
        sum(engine, 2);
      },
      nullptr, Sharing::memory);
}

TEST_CASE("a rank that has joined knows the process sets that the others add") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
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
  run_engines(3, options, [](int rank, Runtime& engine) {
    const int set = add_set(engine, {1, 2});
    if (rank == 2) std::this_thread::sleep_for(400ms);  // slow, but not stalled
    if (rank > 0) sum(engine, 2, set);
    sum(engine, 3);
  });
}

}  // namespace rueda::test::engine_sets_test
