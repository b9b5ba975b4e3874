// Tables on engines that are threads: reads, additions and waits.
#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <vector>

#include "api/table_opening.h"
#include "coordinator/table_owner.h"
#include "effort.h"
#include "ranks/engine_ranks.h"
#include "rueda/server.h"
#include "unit/contains.h"

namespace rueda::test::engine_tables_test {
namespace {

using Floats = std::vector<float>;

Table open(Runtime& engine, const TableOptions& options, int set = 0) {
  return open_table_in(std::shared_ptr<Runtime>(std::shared_ptr<Runtime>(), &engine), set, options);
}

Floats get(Table& table, const GetOptions& options = {}, std::int64_t count = -1) {
  const std::int64_t all = table.options().size - options.begin;
  Floats out(static_cast<std::size_t>(count < 0 ? all : count));
  finish(table.get(out, options));
  return out;
}

void meet(Runtime& engine, int set = 0) {
  finish(table_barrier(engine, set, "the test"));
}

void expect_contains(const std::string& text, const std::string& part) {
  expect(contains(text, part), str("'", part, "' in: ", text));
}

template <class E, class Action>
std::string thrown_by(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  throw std::runtime_error("expected an error");
}

void error_of_shape(Table& table) {
  const std::string told =
      thrown_by<InvalidArgumentError>([&] { static_cast<void>(table.put_state(Floats(3), 0, 2)); });
  expect_contains(told, "3 state values for 2 elements with 1 each");
}

// Small integers, whose sums are exact in any order.
Floats some(std::mt19937& random, std::int64_t count) {
  Floats values(static_cast<std::size_t>(count));
  const std::size_t drawn = std::min(values.size(), max_drawn);
  std::generate_n(values.begin(), drawn, [&] { return static_cast<float>(random() % 65) - 32; });
  for (std::size_t i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
  return values;
}

// The sum of what all ranks add.
class Total {
 public:
  explicit Total(std::int64_t size) : sum_(static_cast<std::size_t>(size)) {}
  void add(const Floats& delta, std::int64_t begin, float factor) {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < delta.size(); ++i) {
      sum_[static_cast<std::size_t>(begin) + i] += factor * delta[i];
    }
  }
  [[nodiscard]] const Floats& sum() const { return sum_; }

 private:
  std::mutex mutex_;
  Floats sum_;
};

TEST_CASE("what all ranks add is there, whatever the sizes") {
  const int ranks = GENERATE(from_range(efforts({1, 2, 3, 4}, {1, 3})));
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  // Fewer elements than ranks; inline; as messages; and parts larger than a rank processes at once.
  const std::int64_t large = effort(700'003, 800'003);
  const std::int64_t size = GENERATE_COPY(1, 7, 1000, 50'001, large);
  const bool replicated = GENERATE(false, true);
  if (size == large && (ranks == effort(3, 1) || replicated)) return;
  // How a rank processes its part does not depend on how the request arrived.
  if (size == large && is_sanitized && sharing == Sharing::memory) return;
  Total total(size);
  run_engines(
      ranks, {},
      [&](int rank, Runtime& engine) {
        std::mt19937 random(static_cast<std::uint32_t>(rank));
        Table table = open(engine, {.name = "t", .size = size, .replicated = replicated});
        std::vector<Floats> deltas;
        std::vector<Handle> handles;
        for (int step = 0; step < 6; ++step) {
          const std::int64_t begin =
              step == 0 ? 0 : static_cast<std::int64_t>(random() % 1000) % size;
          const std::int64_t count =
              step == 1 ? 0 : (step % 2 == 0 ? size - begin : (size - begin) / 2);
          deltas.push_back(some(random, count));
          const float factor = step == 3 ? 0.5F : 1.0F;
          total.add(deltas.back(), begin, factor);
          handles.push_back(table.add(deltas.back(), {.begin = begin, .factor = factor}));
        }
        for (const Handle& handle : handles) finish(handle);
        meet(engine);
        expect(get(table) == total.sum(), "all additions");
        const std::int64_t middle = size / 3;
        const Floats part = get(table, {.begin = middle}, size - 2 * middle);
        expect(std::equal(part.begin(), part.end(), total.sum().begin() + middle), "a range");
        meet(engine);
        if (rank == 0) finish(table.put(Floats(static_cast<std::size_t>(size), 3)));
        meet(engine);
        expect(get(table) == Floats(static_cast<std::size_t>(size), 3), "what was put");
        if (replicated && ranks > 1) {
          const auto parts = table.parts();
          expect(parts.size() == 2 && parts[1].owner == (rank + ranks - 1) % ranks, "a replica");
          expect(std::all_of(parts[1].values.begin(), parts[1].values.end(),
                             [](float value) { return value == 3; }),
                 "what was put, at the replica");
        }
        table.close();
      },
      nullptr, sharing);
}

TEST_CASE("rows are there for all, and what is asked for only") {
  const int ranks = GENERATE(from_range(efforts({1, 2, 4}, {1, 4})));
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  const std::int64_t width = GENERATE(from_range(efforts<std::int64_t>({1, 5, 300}, {1, 300})));
  const bool replicated = GENERATE(false, true);
  const bool partitioned = GENERATE(false, true);
  constexpr std::int64_t rows = 50;
  const std::int64_t apart = 1'000'000'007;
  Total total(rows * width);
  run_engines(
      ranks, {},
      [&](int rank, Runtime& engine) {
        std::mt19937 random(static_cast<std::uint32_t>(rank));
        Table table = open(
            engine,
            {.name = "rows", .width = width, .initial = {.value = 2}, .replicated = replicated});
        std::vector<std::int64_t> all(rows);
        std::iota(all.begin(), all.end(), 0);
        std::vector<int> owners;
        for (std::int64_t& row : all) {
          if (partitioned) owners.push_back(static_cast<int>(row % ranks));
          row *= apart;
        }
        for (int step = 0; step < 4; ++step) {
          const std::size_t first = random() % rows;
          const std::size_t count = random() % (rows - first + 1);
          const std::vector<std::int64_t> some_rows(all.begin() + first,
                                                    all.begin() + first + count);
          const std::vector<int> some_owners(owners.begin() + (partitioned ? first : 0),
                                             owners.begin() + (partitioned ? first + count : 0));
          const Floats delta = some(random, static_cast<std::int64_t>(count) * width);
          total.add(delta, static_cast<std::int64_t>(first) * width, 1);
          finish(table.add_rows(some_rows, delta, some_owners, {.ticks = true}));
        }
        Floats out(static_cast<std::size_t>(rows * width));
        finish(table.get_rows(all, out, owners, {.min_clock = 4}));
        for (std::size_t i = 0; i < out.size(); ++i) {
          expect(out[i] == 2 + total.sum()[i], "all additions, on top of what rows begin with");
        }
        meet(engine);
        table.close();
      },
      nullptr, sharing);
}

TEST_CASE("in the order of the ring, sums have the bits of a ring allreduce") {
  const int ranks = GENERATE(from_range(efforts({1, 2, 3, 4}, {1, 3})));
  const std::int64_t size = GENERATE(3, 1000, 20'011, 300'007);
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  const bool replicated = GENERATE(false, true);
  // More than a rank alone processes at once; with more ranks, just messages, as tested above.
  if (size == 300'007 && is_sanitized && ranks > 1) return;
  constexpr int steps = 3;
  // The ring's sums: without shared memory, whose algorithms may add in another order.
  std::vector<Floats> expected(steps);
  const auto delta_of = [&](int rank, int step) {
    std::mt19937 random(static_cast<std::uint32_t>(100 * step + rank));
    std::normal_distribution<float> normal;
    Floats delta(static_cast<std::size_t>(size));
    const std::size_t drawn = std::min(delta.size(), max_drawn);
    std::generate_n(delta.begin(), drawn, [&] { return normal(random); });
    for (std::size_t i = drawn; i < delta.size(); ++i) delta[i] = delta[i - drawn];
    return delta;
  };
  run_engines(ranks, {}, [&](int rank, Runtime& engine) {
    Floats sum(static_cast<std::size_t>(size));
    for (int step = 0; step < steps; ++step) {
      Floats delta = delta_of(rank, step);
      finish(run(engine, allreduce_of(delta, DataType::float32, "sum")));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += delta[i];
      if (rank == 0) expected[static_cast<std::size_t>(step)] = sum;
    }
  });
  run_engines(
      ranks, {},
      [&](int rank, Runtime& engine) {
        Table table =
            open(engine,
                 {.name = "r", .size = size, .order = TableOrder::ring, .replicated = replicated});
        for (int step = 0; step < steps; ++step) {
          const Floats delta = delta_of(rank, step);
          finish(table.add(delta, {.ticks = true}));
          // An addition completes with its step.
          expect(std::memcmp(get(table, {.min_clock = step + 1}).data(),
                             expected[static_cast<std::size_t>(step)].data(),
                             delta.size() * sizeof(float)) == 0,
                 str("the bits of step ", step));
          meet(engine);
        }
        const std::string other = thrown_by<InvalidArgumentError>([&] {
          (void)table.add(Floats(static_cast<std::size_t>(size)), {.by_staleness = true});
        });
        expect_contains(other, "no addition is stale");
        table.close();
      },
      nullptr, sharing);
}

TEST_CASE("many steps in the order of the ring may be under way at once") {
  const bool replicated = GENERATE(false, true);
  constexpr int steps = effort(40, 20);
  run_engines(3, {}, [&](int rank, Runtime& engine) {
    Table table = open(
        engine, {.name = "r", .size = 5000, .order = TableOrder::ring, .replicated = replicated});
    const Floats delta(5000, static_cast<float>(rank + 1));
    std::vector<Handle> handles;
    for (int step = 0; step < steps; ++step) {
      // The last rank waits for each addition, the others do not.
      handles.push_back(table.add(delta));
      if (rank == 2) finish(handles.back());
    }
    for (const Handle& handle : handles) finish(handle);
    expect(get(table) == Floats(5000, 6.0F * steps), "all steps");
    table.close();
  });
}

TEST_CASE("in the order of the ring, a rank that has finished is passed over") {
  const int early = GENERATE(0, 1, 2);
  run_engines(3, {}, [&](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "r", .size = 10, .order = TableOrder::ring});
    const Floats delta(10, 1);
    for (int step = 0; step < (rank == early ? 2 : 5); ++step) finish(table.add(delta));
    finish(table.finish());
    meet(engine);
    expect(get(table) == Floats(10, 2 * 3 + 3 * 2), "three steps of two ranks");
    expect_contains(error_of<InvalidArgumentError>(table.add(delta)), "has finished");
    table.close();
  });
}

TEST_CASE("in the order of the ring, factors that differ are told to all of the step") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "r", .size = 10, .order = TableOrder::ring});
    const Floats delta(10, 1);
    const Handle differs = table.add(delta, {.factor = rank == 1 ? 2.0F : 1.0F});
    const Handle agrees = table.add(delta);
    expect_contains(error_of<MismatchError>(differs), "all must pass the same");
    finish(agrees);
    expect(get(table) == Floats(10, 3), "the step that follows");
    table.close();
  });
}

// --- Flow control

TEST_CASE("more than an owner takes at once is taken in the end, also by replicas") {
  const int ranks = 2;
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  constexpr int steps = effort(2, 1);
  // Each payload is more than half of the staging memory.
  constexpr std::int64_t part = (TableOwner::staging_bytes / sizeof(float)) * 5 / 8;
  const std::int64_t size = part * ranks;
  run_engines(
      ranks, {},
      [&](int rank, Runtime& engine) {
        Table table = open(engine, {.name = "large", .size = size, .replicated = true});
        const Floats delta(static_cast<std::size_t>(size), static_cast<float>(rank + 1));
        std::vector<Handle> handles;
        for (int step = 0; step < steps; ++step) handles.push_back(table.add(delta));
        Floats first(static_cast<std::size_t>(size)), second(static_cast<std::size_t>(size));
        handles.push_back(table.get(first));
        handles.push_back(table.get(second));
        for (const Handle& handle : handles) finish(handle);
        meet(engine);
        const auto sum = static_cast<float>(steps * ranks * (ranks + 1) / 2);
        finish(table.get(first));
        expect(first.front() == sum && first.back() == sum && first[first.size() / 2] == sum,
               "all additions");
        table.close();
      },
      nullptr, sharing);
}

TEST_CASE("rows that are more than an owner takes at once come in the end, to all that ask") {
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  constexpr std::int64_t width = 8192;  // not read in place
  constexpr std::size_t count = TableOwner::staging_bytes / (width * sizeof(float)) + 8;
  static_assert(count * sizeof(std::int64_t) > table_inline_bytes);
  run_engines(
      2, {},
      [&](int /*rank*/, Runtime& engine) {
        Table table = open(engine, {.name = "wide", .width = width, .initial = {.value = 3}});
        std::vector<std::int64_t> rows(count);
        std::iota(rows.begin(), rows.end(), 0);
        const std::vector<int> owners(count, 0);
        Floats out(count * width);
        finish(table.get_rows(rows, out, owners));
        expect(out.front() == 3 && out.back() == 3, "what rows have to begin with");
        meet(engine);
        table.close();
      },
      nullptr, sharing);
}

TEST_CASE("many small requests at once come in their order") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "small", .size = 2});
    std::vector<Floats> seen(effort(3000, 500), Floats(2));
    std::vector<Handle> handles;
    const Floats one(1, 1);
    for (Floats& each : seen) {
      handles.push_back(table.add(one, {.begin = rank}));
      handles.push_back(table.get(each));
    }
    for (const Handle& handle : handles) finish(handle);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      expect(seen[i][static_cast<std::size_t>(rank)] == static_cast<float>(i + 1),
             "a rank sees what it has added before");
    }
    meet(engine);
    table.close();
  });
}

TEST_CASE("waiting for clocks holds up neither ticks nor replicas") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "waiting", .size = 4, .replicated = true});
    // As many requests as an owner takes at once wait for a step that no rank has completed.
    std::vector<Floats> out(TableClient::requests_at_once, Floats(2));
    std::vector<Handle> handles;
    for (Floats& each : out)
      handles.push_back(table.get(each, {.begin = 2 - 2 * rank, .min_clock = 1}));
    meet(engine);
    const Floats one(2, 1);
    finish(table.add(one, {.begin = 2 * rank}));  // its own part, which the other replicates
    meet(engine);
    const Handle tick = table.finish();
    for (const Handle& handle : handles) finish(handle);
    finish(tick);
    for (const Floats& each : out) expect(each == Floats(2, 1), "the other's addition");
    meet(engine);
    table.close();
  });
}

// --- Clocks

TEST_CASE("what gets nothing waits for the clocks as well") {
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  run_engines(
      3, {},
      [](int rank, Runtime& engine) {
        // The last rank has no part of the elements.
        Table elements = open(engine, {.name = "elements", .size = 2, .bounds = {0, 1, 2, 2}});
        Table rows = open(engine, {.name = "rows", .width = 4});
        const std::array<Handle, 2> waiting{elements.get({}, {.begin = 1, .min_clock = 1}),
                                            rows.get_rows({}, {}, {}, {.min_clock = 1})};
        if (rank != 0) {
          finish(elements.tick());
          finish(rows.tick());
        }
        meet(engine);
        if (rank == 0) {
          // Queued behind the waiting requests of the same owner.
          static_cast<void>(elements.call("sum", {}));
          static_cast<void>(rows.call("sum", {}));
          for (const Handle& each : waiting) expect(!each.done(), "rank 0 has not ticked");
          finish(elements.tick());
          finish(rows.tick());
        }
        for (const Handle& each : waiting) finish(each);
        meet(engine);
        elements.close();
        rows.close();
      },
      nullptr, sharing);
}

TEST_CASE("no rank goes further ahead than the bound, at any step") {
  const int bound = GENERATE(0, 1, 3);
  constexpr int ranks = 3;
  constexpr int steps = effort(400, 80);
  std::array<std::atomic<int>, ranks> clocks{};
  std::atomic<int> widest{0};
  run_engines(ranks, {}, [&](int rank, Runtime& engine) {
    std::mt19937 random(static_cast<std::uint32_t>(rank));
    Table table = open(engine, {.name = "ssp", .size = 30});
    const Floats delta(30, 1);
    Floats out(30);
    for (int step = 0; step < steps; ++step) {
      finish(table.get(out, {.min_clock = step - bound}));
      int least = steps;
      for (const auto& clock : clocks) least = std::min(least, clock.load());
      expect(step - least <= bound, "nobody is further ahead");
      int wide = widest.load();
      while (wide < step - least && !widest.compare_exchange_weak(wide, step - least)) continue;
      // The result includes all additions of these steps.
      for (const float value : out) {
        expect(value >= static_cast<float>(ranks * std::max(0, step - bound)), "their additions");
      }
      if (random() % 16 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      ++clocks[static_cast<std::size_t>(rank)];
      finish(table.add(delta, {.ticks = true}));
    }
    finish(table.finish());
    meet(engine);
    table.close();
  });
  CHECK(widest <= bound);
}

TEST_CASE("a table goes on with what another had of values, state and clocks") {
  const int ranks = GENERATE(1, 3);
  const bool replicated = GENERATE(false, true);
  run_engines(ranks, {}, [&](int rank, Runtime& engine) {
    const TableOptions options{.name = "old",
                               .size = 50,
                               .rule = "adagrad",
                               .parameters = {0.5, 1e-6},
                               .replicated = replicated};
    TableOptions others = options;
    others.name = "new";
    others.bounds.assign(static_cast<std::size_t>(ranks), 0);
    others.bounds.push_back(50);  // the last rank owns all
    Table table = open(engine, options);
    Table next = open(engine, others);
    const Floats delta(50, 2);
    for (int step = 0; step <= rank; ++step) finish(table.add(delta, {.ticks = true}));
    meet(engine);
    expect(table.clocks().back() == ranks, "the last has added most");
    const TablePart part = [&] {
      meet(engine);
      return table.parts().front();
    }();
    const auto count = static_cast<std::int64_t>(part.values.size());
    finish(next.put(part.values, part.begin));
    finish(next.put_state(part.state, part.begin, count));
    finish(next.restart(table.clocks()[static_cast<std::size_t>(rank)]));
    meet(engine);
    Floats out(50);
    finish(next.get(out, {.min_clock = 1}));  // rank 0 has ticked once
    if (rank == 0) finish(next.add(delta));
    meet(engine);
    float value = 0;
    float state = 0;
    for (int step = 0; step <= ranks * (ranks + 1) / 2; ++step) {
      state += 4;
      value -= 0.5F * 2 / (std::sqrt(state) + 1e-6F);
    }
    expect(get(next) == Floats(50, value), "it goes on where the other was");
    expect(next.clocks() == table.clocks(), "and so do clocks");
    error_of_shape(next);
    meet(engine);
    next.close();
    table.close();
  });
}

TEST_CASE("clocks can begin anew") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "anew", .size = 2});
    for (int step = 0; step < 3 + 5 * rank; ++step) finish(table.tick());
    if (rank == 1) finish(table.finish());
    meet(engine);
    finish(table.restart());
    meet(engine);
    Floats out(2);
    const Handle waiting = table.get(out, {.min_clock = 1});
    meet(engine);
    expect(!waiting.done(), "nobody has done a step since");
    meet(engine);
    finish(table.tick());
    finish(waiting);
    meet(engine);
    table.close();
  });
}

TEST_CASE("staleness is what was added between a get and an add, and scales the factor") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "stale", .size = 2, .bounds = {0, 2, 2}});
    const Floats delta(2, 12);
    static_cast<void>(get(table));
    meet(engine);
    if (rank == 0) {
      for (int i = 0; i < 3; ++i) finish(table.add(delta, {.factor = 0}));
      static_cast<void>(get(table));
    }
    meet(engine);
    if (rank == 1) {
      finish(table.add(delta, {.factor = 2, .by_staleness = true}));
      expect(get(table) == Floats(2, 6), "a quarter of 24");
      const auto counts = table.staleness();
      expect(counts[3] == 1 && std::accumulate(counts.begin(), counts.end(), 0ULL) == 1,
             "three additions of others");
      finish(table.add(delta, {.by_staleness = true}));
      expect(get(table) == Floats(2, 18), "nothing since");
    }
    meet(engine);
    table.close();
  });
}

TEST_CASE("who waits too long for a clock or a turn is told who is behind") {
  Options options;
  options.stall_warning = 0.05;
  options.stall_error = 0.5;
  const auto order = GENERATE(TableOrder::as_they_come, TableOrder::ring);
  std::atomic<bool> is_told{false};
  run_engines(2, options, [&](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "late", .size = 2, .bounds = {0, 2, 2}, .order = order});
    // At owner 0, rank 1 has the first turn.
    const Floats delta(2, 1);
    std::optional<Handle> waiting;
    Floats out(2);
    if (rank == 0) {
      waiting = order == TableOrder::ring ? table.add(delta) : table.get(out, {.min_clock = 1});
      const std::string text = error_of<StalledError>(*waiting);
      expect_contains(text, "table 'late'");
      expect_contains(text,
                      order == TableOrder::ring ? "for rank 1, which" : "ranks 0 and 1, which");
      expect_contains(text, "finish()");
      is_told = true;
    }
    // A rank that waits too long in the barrier would get an error, too.
    await([&] { return is_told.load(); }, "an error on rank 0");
    meet(engine);
    if (order == TableOrder::ring && rank == 1) {
      expect_contains(error_of<StalledError>(table.add(delta)), "no more additions");
    }
    if (order == TableOrder::as_they_come) {
      finish(table.finish());
      finish(table.get(out, {.min_clock = 1}));
    }
    meet(engine);
    table.close();
  });
}

TEST_CASE("a wait for a clock sleeps") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "idle", .size = 8});
    Floats out(8);
    if (rank == 0) {
      const Handle waiting = table.get(out, {.min_clock = 1});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const std::int64_t before = metric(engine, "idle_wakeups");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      expect(metric(engine, "idle_wakeups") - before <= 2, "nobody looks while nothing comes");
      finish(table.finish());
      meet(engine);
      finish(waiting);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      finish(table.finish());
      meet(engine);
    }
    meet(engine);
    table.close();
  });
}

// --- Costs

TEST_CASE("a small request costs a message each way, a large one two more") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "cost", .size = 100'000, .bounds = {0, 0, 100'000}});
    // Exact for the asking rank; an upper bound for the owner, which sends barrier messages too.
    constexpr int times = 50;
    const auto cost = [&](std::int64_t asker, std::int64_t owner, const auto& action) {
      meet(engine);
      const std::int64_t before = metric(engine, "control_messages_sent");
      for (int i = 0; rank == 0 && i < times; ++i) finish(action());
      const std::int64_t asked = metric(engine, "control_messages_sent") - before;
      meet(engine);
      const std::int64_t all = metric(engine, "control_messages_sent") - before;
      expect(rank != 0 || asked == asker * times, str(asked, " messages of the one who asks"));
      expect(rank != 1 || all < owner * times + times / 2, str(all, " messages of the owner"));
    };
    const Floats small(10, 1);
    const Floats large(100'000, 1);
    Floats out(100'000);
    cost(1, 1, [&] { return table.add(small); });  // a request, an answer
    // Plus an offer and a request for its data, which goes over the transport.
    cost(2, 2, [&] { return table.add(large); });
    cost(2, 2, [&] { return table.get(out); });
    meet(engine);
    table.close();
  });
}

// Every rank repeatedly adds to and reads every part while the others do the same.
TEST_CASE("ranks of a host work on each other's parts by themselves, without a message") {
  const bool has_rows = GENERATE(false, true);
  constexpr int ranks = 3;
  constexpr int times = 200;
  constexpr std::int64_t count = 300;
  run_engines(
      ranks, {},
      [&](int /*rank*/, Runtime& engine) {
        Table table = open(engine, has_rows ? TableOptions{.name = "rows", .width = 4}
                                            : TableOptions{.name = "flat", .size = count});
        std::vector<std::int64_t> rows(count / 4);
        std::iota(rows.begin(), rows.end(), 0);
        const Floats ones(count, 1);
        Floats out(count);
        const auto add = [&] { return has_rows ? table.add_rows(rows, ones) : table.add(ones); };
        const auto read = [&] { return has_rows ? table.get_rows(rows, out) : table.get(out); };
        finish(add());  // creates the rows, which only their owners can do
        meet(engine);
        const std::int64_t direct = metric(engine, "table_parts_direct");
        const std::int64_t asked = metric(engine, "table_requests_sent");
        const auto messages = [&] {
          return metric(engine, "control_messages_sent") - metric(engine, "table_requests_sent") -
                 metric(engine, "table_answers_sent");
        };
        const std::int64_t others = messages();
        for (int i = 0; i < times; ++i) {
          finish(add());
          finish(read());
          for (int part = 0; part < ranks && !has_rows; ++part) {
            const float first = out[static_cast<std::size_t>(part * count / ranks)];
            for (std::int64_t at = 0; at < count / ranks; ++at) {
              expect(out[static_cast<std::size_t>(part * count / ranks + at)] == first,
                     "whole additions");
            }
          }
        }
        // A request is sent only for a part that another rank held while it was preempted.
        const std::int64_t requests = metric(engine, "table_requests_sent") - asked;
        const std::int64_t parts = metric(engine, "table_parts_direct") - direct;
        expect(parts + requests == 2 * ranks * times, str(parts, " and ", requests, " parts"));
        expect(parts > ranks * times, str("only ", parts, " parts without a message"));
        // One that is just being sent to another rank is not in all counters yet.
        await([&] { return messages() == others; }, "nothing else to be sent");
        meet(engine);
        finish(read());
        expect(std::all_of(out.begin(), out.end(),
                           [&](float value) { return value == float{ranks * (times + 1)}; }),
               "all additions");
        std::uint64_t met = 0;
        for (const std::uint64_t each : table.staleness()) met += each;
        expect(met == static_cast<std::uint64_t>(ranks * (times + 1)), "each is counted");
        meet(engine);
        table.close();
      },
      nullptr, Sharing::memory);
}

TEST_CASE("what depends on an order or on replicas is asked of the owners, on one host too") {
  run_engines(
      2, {},
      [](int /*rank*/, Runtime& engine) {
        const auto parts_direct = [&](const TableOptions& options) {
          Table table = open(engine, options);
          const std::int64_t before = metric(engine, "table_parts_direct");
          const Floats ones(static_cast<std::size_t>(options.size), 1);
          finish(table.add(ones, {.ticks = true}));
          Floats out(ones.size());
          finish(table.get(out, {.min_clock = 1}));
          expect(out.front() == 2 && out.back() == 2, "both additions");
          const std::int64_t done = metric(engine, "table_parts_direct") - before;
          meet(engine);
          table.close();
          return done;
        };
        expect(parts_direct({.name = "small", .size = 10}) >= 2, "by itself");
        expect(parts_direct({.name = "ring", .size = 10, .order = TableOrder::ring}) == 0, "order");
        expect(parts_direct({.name = "kept", .size = 10, .replicated = true}) == 0, "replicas");
        expect(parts_direct({.name = "large", .size = (1 << 19) + 2}) == 0, "large parts");
        expect(parts_direct({.name = "uneven", .size = (1 << 19), .bounds = {0, 5, 1 << 19}}) > 0,
               "a small part of a table");
      },
      nullptr, Sharing::memory);
}

// --- Functions

TEST_CASE("functions run at the owners") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "functions", .size = 9});
    Floats values(9);
    std::iota(values.begin(), values.end(), 0.0F);
    if (rank == 0) finish(table.put(values));
    meet(engine);
    const auto sums = table.call("sum");
    for (std::size_t owner = 0; owner < 3; ++owner) {
      double sum = 0;
      std::memcpy(&sum, sums.at(owner).data(), sizeof sum);
      expect(sum == 9.0 * static_cast<double>(owner) + 3, "of its part");
    }
    expect_contains(thrown_by<InvalidArgumentError>([&] { (void)table.call("median"); }), "median");
    expect_contains(thrown_by<InvalidArgumentError>([&] { (void)table.call("top"); }), "failed");
    meet(engine);
    table.close();
  });
}

TEST_CASE("functions with large results") {
  run_engines(2, {}, [](int /*rank*/, Runtime& engine) {
    Table table = open(engine, {.name = "functions", .size = 100'000});
    const std::int64_t wanted = 40'000;
    const auto found = table.call("top", std::as_bytes(std::span(&wanted, 1)));
    for (const auto& each : found) expect(each.size() == 12 * 40'000, "so many of each");
    meet(engine);
    table.close();
  });
}

// Counts the values of a shard between two bounds.
std::vector<std::byte> count_between(const ShardView& shard, std::span<const std::byte> arguments) {
  std::array<float, 2> bounds{};
  if (arguments.size() != sizeof bounds) throw std::runtime_error("two bounds are needed");
  std::memcpy(bounds.data(), arguments.data(), sizeof bounds);
  std::int64_t found = 0;
  shard.visit([&](std::int64_t /*index*/, std::span<const float> values) {
    found += std::count_if(values.begin(), values.end(),
                           [&](float value) { return bounds[0] <= value && value < bounds[1]; });
  });
  const auto* const bytes = reinterpret_cast<const std::byte*>(&found);
  return {bytes, bytes + sizeof found};
}

// Limits values to a bound, and counts the changes of each.
void add_below(const UpdateArguments& update) {
  for (std::size_t i = 0; i < update.values.size(); ++i) {
    const auto bound = static_cast<float>(update.parameters[0]);
    update.values[i] = std::min(update.values[i] + update.factor * update.delta[i], bound);
    ++update.state[static_cast<std::ptrdiff_t>(i)];
  }
}

TEST_CASE("functions and rules of the application run at the owners") {
  register_shard_function("count_between", count_between);
  register_update_rule("add_below", {add_below, 1, {"bound"}});
  run_engines(3, {}, [](int rank, Runtime& engine) {
    Table table =
        open(engine, {.name = "own", .size = 9, .rule = "add_below", .parameters = {7.5}});
    Floats delta(9);
    std::iota(delta.begin(), delta.end(), 0.0F);
    finish(table.add(delta));  // three ranks add 0 to 8
    meet(engine);
    Floats values(9);
    finish(table.get(values));
    expect(values == Floats{0, 3, 6, 7.5F, 7.5F, 7.5F, 7.5F, 7.5F, 7.5F}, "bounded");
    const std::array<float, 2> bounds{3, 7.5F};
    const auto counts = table.call("count_between", std::as_bytes(std::span(bounds)));
    const std::array<std::int64_t, 3> expected{2, 0, 0};
    for (std::size_t owner = 0; owner < 3; ++owner) {
      std::int64_t count = -1;
      expect(counts.at(owner).size() == sizeof count, "a number");
      std::memcpy(&count, counts[owner].data(), sizeof count);
      expect(count == expected.at(owner), str("of owner ", owner));
    }
    const std::string thrown =
        thrown_by<InvalidArgumentError>([&] { (void)table.call("count_between"); });
    expect_contains(thrown, "': the function 'count_between' failed at its owner, rank ");
    expect_contains(thrown, ": two bounds are needed");
    meet(engine);
    const auto parts = table.parts();
    expect(parts.size() == 1 && parts[0].owner == rank, "its own");
    expect(parts[0].state == Floats(3, 3), "each was changed by all ranks");
    table.close();
  });
}

// --- Opening and closing

TEST_CASE("what cannot be opened is told to every rank, and the world goes on") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    const auto refused = [&](const TableOptions& options, const std::string& what) {
      const std::string text =
          thrown_by<InvalidArgumentError>([&] { (void)open(engine, options); });
      expect_contains(text, what);
    };
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    refused({.name = "t", .size = 10, .bounds = {0, 5, 9}},
            "must begin at 0 and end at the size, 10");
    refused({.name = "t", .size = 10, .bounds = {0, 10}}, "3 are needed");
    refused({.name = "t", .size = 10, .bounds = {0, 11, 10}}, "do not ascend");
    refused({.name = "t"}, "exactly one of them must be positive");
    refused({.name = "t", .size = 3, .width = 3}, "exactly one of them must be positive");
    refused({.name = "t", .size = -3}, "exactly one of them must be positive");
    refused({.name = "t", .size = most}, "at most");
    refused({.name = "t", .size = most / 1024 / 16}, "bytes");
    refused({.name = "t", .width = most}, "at most");
    refused({.name = "t", .width = 2, .initial = {.spread = std::nanf("")}}, "finite");
    refused({.name = "t", .width = 2, .order = TableOrder::ring}, "ring order");
    refused({.name = "t", .size = 10, .rule = "adam"}, "adam");
    refused({.name = "t", .size = 10, .rule = "adagrad", .parameters = {0.1}}, "2 parameters");
    // Wrong on one rank only.
    refused({.name = "t", .size = rank == 1 ? 0 : 10}, "rank 1");
    const std::string differing =
        thrown_by<MismatchError>([&] { (void)open(engine, {.name = "t", .size = 10 + rank}); });
    expect_contains(differing, "size 10");
    expect_contains(differing, "size 11");
    Table table = open(engine, {.name = "t", .size = 10});
    refused({.name = "t", .size = 10}, "open already");
    table.close();
    table.close();
    expect_contains(thrown_by<InvalidArgumentError>([&] { (void)table.tick(); }), "closed");
    Table again = open(engine, {.name = "t", .size = 10});
    expect(get(again) == Floats(10), "zeros to begin with");
    again.close();
  });
}

TEST_CASE("what is asked of a table has to fit") {
  run_engines(2, {}, [](int rank, Runtime& engine) {
    Table table = open(engine, {.name = "t", .size = 10});
    Table rows = open(engine, {.name = "rows", .width = 2});
    Floats values(4);
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    using Bad = InvalidArgumentError;
    expect_contains(thrown_by<Bad>([&] { (void)table.get(values, {.begin = 8}); }), "10 in all");
    expect_contains(thrown_by<Bad>([&] { (void)table.add(values, {.begin = -1}); }), "10 in all");
    expect_contains(thrown_by<Bad>([&] { (void)table.put(values, most); }), "10 in all");
    expect_contains(thrown_by<Bad>([&] { (void)rows.get(values); }), "has rows");
    const std::vector<std::int64_t> two{0, 5};
    expect_contains(thrown_by<Bad>([&] { (void)table.get_rows(two, values); }), "not rows");
    const std::vector<std::int64_t> negative{0, -5};
    expect_contains(thrown_by<Bad>([&] { (void)rows.get_rows(negative, values); }), "row -5");
    const std::vector<int> owners{0, 2};
    expect_contains(thrown_by<Bad>([&] { (void)rows.add_rows(two, values, owners); }), "rank 2");
    Floats three(3);
    expect_contains(thrown_by<Bad>([&] { (void)rows.put_rows(two, three); }), "3 elements");
    finish(rows.put_rows(two, values));
    meet(engine);
    table.close();
    rows.close();
    static_cast<void>(rank);
  });
}

TEST_CASE("tables opened by several threads at once are different ones") {
  constexpr int threads = 3;
  run_engines(3, {}, [](int rank, Runtime& engine) {
    const std::string failures = run_threads(threads, "thread", [&](int thread) {
      // A thread uses different tables on different ranks.
      const int which = (thread + rank) % threads;
      for (int round = 0; round < 5; ++round) {
        Table table = open(engine, {.name = str("t", which), .size = 30});
        const Floats delta(30, static_cast<float>(which + 1));
        finish(table.add(delta, {.ticks = true}));
        expect(get(table, {.min_clock = 1}) == Floats(30, 3.0F * static_cast<float>(which + 1)),
               "what was added to this one");
        table.close();
      }
    });
    expect(failures.empty(), failures);
  });
}

TEST_CASE("a table of a subset, and of a set that is removed meanwhile") {
  run_engines(3, {}, [](int rank, Runtime& engine) {
    const int set = add_set(engine, {0, 2});
    if (rank == 1) {
      expect_contains(thrown_by<InvalidArgumentError>(
                          [&] { (void)open(engine, {.name = "t", .size = 10}, set); }),
                      "not a member of process set");
    } else {
      Table table = open(engine, {.name = "t", .size = 10}, set);
      const Floats delta(10, 1);
      finish(table.add(delta, {.ticks = true}));
      expect(get(table, {.min_clock = 1}) == Floats(10, 2), "of both");
      meet(engine, set);
      Table other = open(engine, {.name = "other", .size = 10}, set);
      table.close();
      finish(other.add(delta));
      meet(engine, set);
      remove_set(engine, set);
      expect_contains(error_of<Error>(other.add(delta)), "removed");
      other.close();
      return;
    }
    remove_set(engine, set);
  });
}

// --- Failures

TEST_CASE("a rank that leaves is told to who waits for it") {
  // All elements, or only rank 0's: then rank 1 only counts the tick.
  const std::size_t added = GENERATE(10, 5);
  run_engines(2, {}, [&](int rank, Runtime& engine) {
    auto table = std::make_unique<Table>(open(engine, {.name = "t", .size = 10}));
    meet(engine);
    if (rank == 1) return;  // without closing the table
    const Floats delta(added, 1);
    std::string text;
    const Time deadline = soon();
    while (text.empty() && Clock::now() < deadline) {
      try {
        finish(table->add(delta, {.ticks = added < 10}));
      } catch (const Error& error) {
        text = error.what();
      }
    }
    expect(!text.empty(), "an error in the end");
  });
}

TEST_CASE("when a rank is lost, nobody hangs, and what was confirmed twice is still there") {
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  const auto order = GENERATE(TableOrder::as_they_come, TableOrder::ring);
  constexpr int ranks = 3;
  constexpr std::int64_t size = effort(60'000, 30'000);
  InprocHub hub(ranks);
  std::array<std::atomic<int>, ranks> confirmed{};
  std::vector<std::vector<TablePart>> parts(ranks);
  run_engines(
      ranks, {},
      [&](int rank, Runtime& engine) {
        Table table = open(engine, {.name = "t", .size = size, .order = order, .replicated = true});
        const Floats delta(static_cast<std::size_t>(size), 1);
        std::string error;
        for (int step = 0; error.empty(); ++step) {
          if (rank == 2 && step == effort(20, 8)) hub.kill(2);
          try {
            finish(table.add(delta, {.ticks = true}));
            ++confirmed[static_cast<std::size_t>(rank)];
          } catch (const Error& thrown) {
            error = thrown.what();
          }
        }
        parts[static_cast<std::size_t>(rank)] = table.parts();
      },
      &hub, sharing);
  // Rank 0 holds the replica of rank 2's part.
  int least = 0;
  for (const auto& each : confirmed) least += each;
  std::array<const TablePart*, ranks> newest{};
  for (int rank = 0; rank < 2; ++rank) {
    for (const TablePart& part : parts[static_cast<std::size_t>(rank)]) {
      auto& found = newest[static_cast<std::size_t>(part.owner)];
      if (found == nullptr || part.version > found->version) found = &part;
    }
  }
  for (const TablePart* part : newest) {
    REQUIRE(part != nullptr);
    REQUIRE(part->values.size() == static_cast<std::size_t>(size / ranks));
    const float first = part->values.front();
    CHECK(first >= static_cast<float>(least));
    // Every addition is complete.
    CHECK(std::all_of(part->values.begin(), part->values.end(),
                      [&](float value) { return value == first; }));
  }
}

}  // namespace
}  // namespace rueda::test::engine_tables_test
