// Reads, writes and additions on parts of tables, in any pieces, against plain references.
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "server/clocks.h"
#include "server/direct_part.h"
#include "server/ring_step.h"
#include "server/shard.h"
#include "server/shard_function.h"
#include "server/update_rule.h"

namespace rueda::test::table_shard_test {
namespace {

using Floats = std::vector<float>;

AppliedRule rule_of(const std::string& name) {
  return {find_update_rule(name),
          name == "adagrad" ? std::vector<double>{0.5, 1e-6} : std::vector<double>{}};
}

// The documented rules, element by element.
struct Element {
  float value = 0;
  float state = 0;

  void add(const std::string& rule, float delta, float factor) {
    if (rule == "sum") {
      value += factor == 1 ? delta : factor * delta;
      return;
    }
    const float gradient = factor * delta;
    state += gradient * gradient;
    value -= 0.5F * gradient / (std::sqrt(state) + 1e-6F);
  }
};

Floats some(std::mt19937& random, std::size_t count) {
  Floats values(count);
  for (float& value : values) value = static_cast<float>(random() % 2001) / 8 - 125;
  return values;
}

// Calls `work(from, to)` for pieces of random sizes.
template <class Work>
void in_pieces(std::mt19937& random, std::int64_t count, const Work& work) {
  std::int64_t from = 0;
  do {
    const std::int64_t to = std::min<std::int64_t>(count, from + 1 + random() % 5);
    work(from, to);
    from = to;
  } while (from < count);
}

void write(Shard& shard, std::mt19937& random, const Selection& selection, const Floats& values) {
  Shard::Places places;
  in_pieces(random, selection.count,
            [&](auto from, auto to) { REQUIRE(shard.reserve(selection, from, to, places).ok()); });
  in_pieces(random, selection.count,
            [&](auto from, auto to) { shard.write(selection, places, from, to, values.data()); });
}

void add(Shard& shard, std::mt19937& random, const Selection& selection, const Floats& delta,
         float factor) {
  Shard::Places places;
  in_pieces(random, selection.count,
            [&](auto from, auto to) { REQUIRE(shard.reserve(selection, from, to, places).ok()); });
  in_pieces(random, selection.count, [&](auto from, auto to) {
    shard.add(selection, places, from, to, delta.data(), factor);
  });
}

Floats read(const Shard& shard, std::mt19937& random, const Selection& selection) {
  Floats out(static_cast<std::size_t>(selection.count * shard.width()));
  in_pieces(random, selection.count,
            [&](auto from, auto to) { shard.read(selection, from, to, out.data()); });
  return out;
}

TEST_CASE("a dense shard does what its elements do one by one") {
  const std::string rule = GENERATE(as<std::string>{}, "sum", "adagrad");
  const auto seed = GENERATE(take(8, random(0, 1 << 20)));
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  const auto begin = static_cast<std::int64_t>(random() % 100);
  const auto size = static_cast<std::int64_t>(random() % 40);
  DenseShard shard(begin, begin + size, rule_of(rule));
  std::vector<Element> reference(static_cast<std::size_t>(size));
  for (int round = 0; round < 30; ++round) {
    const std::int64_t first =
        static_cast<std::int64_t>(random() % static_cast<unsigned>(size + 1));
    const std::int64_t count =
        static_cast<std::int64_t>(random() % static_cast<unsigned>(size - first + 1));
    const Selection selection{begin + first, count, {}};
    REQUIRE(shard.check(selection).ok());
    const Floats values = some(random, static_cast<std::size_t>(count));
    const float factor = random() % 2 == 0 ? 1.0F : 0.25F;
    const bool writes = random() % 4 == 0;
    writes ? write(shard, random, selection, values)
           : add(shard, random, selection, values, factor);
    for (std::int64_t i = 0; i < count; ++i) {
      Element& element = reference[static_cast<std::size_t>(first + i)];
      const float value = values[static_cast<std::size_t>(i)];
      writes ? static_cast<void>(element.value = value) : element.add(rule, value, factor);
    }
    const Floats all = read(shard, random, {begin, size, {}});
    for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(all[i] == reference[i].value);
  }
  const auto most = std::numeric_limits<std::int64_t>::max();
  CHECK_FALSE(shard.check({begin - 1, 1, {}}).ok());
  CHECK_FALSE(shard.check({begin, size + 1, {}}).ok());
  CHECK_FALSE(shard.check({begin + size, 1, {}}).ok());
  CHECK_FALSE(shard.check({most, most, {}}).ok());
  CHECK_FALSE(shard.check({begin, -1, {}}).ok());
}

TEST_CASE("a shard of rows does what its rows do one by one, made on first touch") {
  const std::string rule = GENERATE(as<std::string>{}, "sum", "adagrad");
  const auto width = GENERATE(1, 3, 16);
  const InitialRows initial{1.5F, GENERATE(0.0F, 0.5F), 7};
  std::mt19937 random(static_cast<std::uint32_t>(width));
  RowShard shard(width, initial, rule_of(rule));
  std::map<std::int64_t, std::vector<Element>> reference;
  const auto expected = [&](std::int64_t row) {
    if (const auto found = reference.find(row); found != reference.end()) return found->second;
    Floats values(static_cast<std::size_t>(width));
    fill_initial(initial, row, values);
    std::vector<Element> elements;
    for (const float value : values) elements.push_back({value, 0});
    return elements;
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<std::int64_t> rows(random() % 9);
    std::iota(rows.begin(), rows.end(), 0);
    for (auto& row : rows) row = row * 1'000'000'007 + static_cast<std::int64_t>(random() % 5);
    const Selection selection{0, static_cast<std::int64_t>(rows.size()), rows};
    REQUIRE(shard.check(selection).ok());
    const Floats before = read(shard, random, selection);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const auto place = i % static_cast<std::size_t>(width);
      REQUIRE(before[i] == expected(rows[i / static_cast<std::size_t>(width)])[place].value);
    }
    const Floats values = some(random, rows.size() * static_cast<std::size_t>(width));
    const bool writes = random() % 4 == 0;
    writes ? write(shard, random, selection, values) : add(shard, random, selection, values, 0.5F);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<Element> elements = expected(rows[i]);
      for (std::size_t j = 0; j < elements.size(); ++j) {
        const float value = values[i * elements.size() + j];
        writes ? static_cast<void>(elements[j].value = value) : elements[j].add(rule, value, 0.5F);
      }
      reference[rows[i]] = elements;
    }
  }
  std::map<std::int64_t, Floats> visited;
  shard.visit([&](std::int64_t row, std::span<const float> values) {
    CHECK(visited.emplace(row, Floats(values.begin(), values.end())).second);
  });
  REQUIRE(visited.size() == reference.size());
  for (const auto& [row, elements] : reference) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      CHECK(visited.at(row)[i] == elements[i].value);
    }
  }
  const std::vector<std::int64_t> negative{3, -1};
  CHECK_FALSE(shard.check({0, 2, negative}).ok());
  CHECK_FALSE(shard.check({0, 3, negative}).ok());
}

TEST_CASE("initial rows are the same for all, in their bounds, and differ") {
  const InitialRows initial{1, 0.25F, 3};
  Floats first(16), again(16), other(16);
  fill_initial(initial, 12, first);
  fill_initial(initial, 12, again);
  fill_initial(initial, 13, other);
  CHECK(first == again);
  CHECK(first != other);
  for (const float value : first) CHECK((value >= 0.75F && value < 1.25F));
}

TEST_CASE("owners of rows are spread evenly") {
  const std::size_t ranks = GENERATE(1U, 2U, 3U, 4U, 7U);
  std::vector<int> counts(ranks);
  constexpr int rows = 20000;
  for (std::int64_t row = 0; row < rows; ++row) {
    ++counts.at(static_cast<std::size_t>(row_owner(row, ranks)));
  }
  for (const int count : counts) {
    CHECK(std::abs(count - rows / static_cast<int>(ranks)) < rows / static_cast<int>(ranks) / 5);
  }
}

// --- Clocks

TEST_CASE("the least clock is that of the rank that is furthest behind and has not finished") {
  std::mt19937 random(GENERATE(range(0U, 5U)));
  const std::vector<int> ranks{2, 3, 8};
  Clocks clocks(ranks);
  std::map<int, std::int64_t> reference{{2, 0}, {3, 0}, {8, 0}};
  for (int round = 0; round < 200; ++round) {
    const int rank = ranks[random() % ranks.size()];
    if (random() % 50 == 0) {
      clocks.finish(rank);
      reference[rank] = Clocks::finished;
    } else {
      clocks.tick(rank);
      if (reference[rank] != Clocks::finished) ++reference[rank];
    }
    std::int64_t least = Clocks::finished;
    for (const auto& [each, clock] : reference) least = std::min(least, clock);
    REQUIRE(clocks.least() == least);
    for (const int behind : clocks.behind(50)) REQUIRE(reference[behind] < 50);
  }
}

// --- Steps in the order of the ring

TEST_CASE("a step adds up from the rank behind the owner on, without those that have finished") {
  const std::size_t ranks = GENERATE(1U, 2U, 3U, 5U);
  for (std::size_t owner = 0; owner < ranks; ++owner) {
    for (unsigned over = 0; over < (1U << ranks); ++over) {
      const auto is_over = [over](std::size_t rank) { return ((over >> rank) & 1U) != 0; };
      RingStep step(ranks, owner, 2);
      for (int round = 0; round < 2; ++round) {
        std::vector<std::size_t> order;
        step.skip(is_over);
        while (!step.is_summed() && !is_over(step.turn())) {
          order.push_back(step.turn());
          const float value = static_cast<float>(step.turn()) + 1;
          const Floats delta{value, -value};
          step.add(delta.data(), 0, 1);
          step.add(delta.data(), 1, 2);
          step.pass();
          step.skip(is_over);
        }
        std::vector<std::size_t> expected;
        float sum = 0;
        for (std::size_t i = 1; i <= ranks; ++i) {
          if (is_over((owner + i) % ranks)) continue;
          expected.push_back((owner + i) % ranks);
          sum += static_cast<float>(expected.back()) + 1;
        }
        REQUIRE(order == expected);
        REQUIRE(step.is_summed() == !expected.empty());
        if (!expected.empty()) {
          REQUIRE(step.sum()[0] == sum);
          REQUIRE(step.sum()[1] == -sum);
          step.restart();
        }
      }
    }
  }
}

// --- Functions

double number(const std::string& function, const ShardView& shard) {
  const auto bytes = (*find_shard_function(function))(shard, {});
  double value = 0;
  REQUIRE(bytes.size() == sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

TEST_CASE("functions of shards") {
  std::mt19937 random(1);
  DenseShard shard(10, 15, rule_of("sum"));
  write(shard, random, {10, 5, {}}, {1, -4, 4, 0.5F, -2});
  CHECK(number("min", shard) == -4);
  CHECK(number("max", shard) == 4);
  CHECK(number("sum", shard) == -0.5);
  CHECK(number("sum_of_squares", shard) == 37.25);
  const std::int64_t wanted = 3;
  const auto top = [&](const ShardView& view) {
    const auto bytes = (*find_shard_function("top"))(view, std::as_bytes(std::span(&wanted, 1)));
    std::vector<std::pair<std::int64_t, float>> items;
    for (std::size_t at = 0; at < bytes.size(); at += 12) {
      auto& [index, magnitude] = items.emplace_back();
      std::memcpy(&index, bytes.data() + at, 8);
      std::memcpy(&magnitude, bytes.data() + at + 8, 4);
    }
    return items;
  };
  using Items = std::vector<std::pair<std::int64_t, float>>;
  CHECK(top(shard) == Items{{11, 4}, {12, 4}, {14, 2}});
  write(shard, random, {12, 1, {}}, {std::nanf("")});
  CHECK(std::isnan(number("min", shard)));
  CHECK(std::isnan(number("max", shard)));
  RowShard rows(2, {}, rule_of("sum"));
  CHECK(number("min", rows) == std::numeric_limits<double>::infinity());
  const std::vector<std::int64_t> which{5, 1'000'000'000'000, 7};
  write(rows, random, {0, 3, which}, {3, 4, 0, -6, 1, 1});
  CHECK(top(rows) == Items{{1'000'000'000'000, 6}, {5, 5}, {7, std::sqrt(2.0F)}});
  CHECK_THROWS_AS((*find_shard_function("top"))(shard, {}), InvalidArgumentError);
  CHECK(find_shard_function("median") == nullptr);
  CHECK_THROWS_AS(register_shard_function("min", *find_shard_function("max")),
                  InvalidArgumentError);
}

TEST_CASE("rules say what they take") {
  CHECK(check_parameters("sum", {}).ok());
  CHECK(check_parameters("adagrad", std::vector{0.1, 1e-8}).ok());
  CHECK_FALSE(check_parameters("adagrad", std::vector{0.1}).ok());
  CHECK_FALSE(check_parameters("adagrad", std::vector{-0.1, 1e-8}).ok());
  CHECK_FALSE(check_parameters("adagrad", std::vector{std::nan(""), 1e-8}).ok());
  CHECK_FALSE(check_parameters("adam", {}).ok());
  CHECK_THROWS_AS(register_update_rule("sum", {find_update_rule("sum")->apply}),
                  InvalidArgumentError);
  CHECK_THROWS_AS(register_update_rule("heavy", {find_update_rule("sum")->apply, 256}),
                  InvalidArgumentError);
}

TEST_CASE("what a rule keeps can be moved to another shard, which goes on as the first would") {
  const bool has_rows = GENERATE(false, true);
  const std::vector<std::int64_t> rows{7, 1 << 30, 9};
  const Selection all = has_rows ? Selection{0, 3, rows} : Selection{10, 6, {}};
  const auto make = [&](std::int64_t begin, std::int64_t end) -> std::unique_ptr<Shard> {
    if (has_rows) return std::make_unique<RowShard>(2, InitialRows{}, rule_of("adagrad"));
    return std::make_unique<DenseShard>(begin, end, rule_of("adagrad"));
  };
  std::mt19937 random(3);
  const auto first = make(10, 16);
  const auto second = make(5, 20);
  const Floats delta = some(random, 6);
  add(*first, random, all, delta, 1);
  add(*first, random, all, delta, 0.5F);
  Floats state;
  std::vector<std::int64_t> indices;
  first->visit_state([&](std::int64_t index, std::span<const float> kept) {
    indices.push_back(index);
    state.insert(state.end(), kept.begin(), kept.end());
  });
  Floats values;
  first->visit([&](std::int64_t /*index*/, std::span<const float> found) {
    values.insert(values.end(), found.begin(), found.end());
  });
  const Selection moved = has_rows ? Selection{0, 3, indices} : all;
  write(*second, random, moved, values);
  Shard::Places places;
  in_pieces(random, moved.count,
            [&](auto from, auto to) { REQUIRE(second->reserve(moved, from, to, places).ok()); });
  in_pieces(random, moved.count, [&](auto from, auto to) {
    second->write_state(moved, places, from, to, state.data());
  });
  add(*first, random, all, delta, 1);
  add(*second, random, all, delta, 1);
  CHECK(read(*first, random, all) == read(*second, random, all));
}

// --- Parts shared by several ranks

// A part in this process's memory, and another rank's view of it.
struct SharedDense {
  explicit SharedDense(std::int64_t count, const std::string& rule = "sum") {
    REQUIRE(part.init());
    const ShardMemory place{.allocate =
                                [this](std::size_t bytes) {
                                  memory.reset(new std::byte[bytes]());
                                  return memory;
                                },
                            .part = &part};
    shard = std::make_unique<DenseShard>(0, count, rule_of(rule), place);
    direct = std::make_unique<DirectPart>(part, nullptr, DirectPart::Shape{.count = count},
                                          rule_of(rule), nullptr);
  }
  SharedPart part{};
  std::shared_ptr<std::byte[]> memory;
  std::byte* base = nullptr;
  std::unique_ptr<DenseShard> shard;
  std::unique_ptr<DirectPart> direct;
};

TEST_CASE("threads that work on a part by themselves, and its owner, take turns") {
  constexpr std::int64_t count = 500;
  constexpr int times = 300;
  SharedDense shared(count);
  const Floats ones(count, 1);
  std::atomic<int> direct{0};
  std::atomic<bool> is_torn{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      Floats out(count);
      for (int i = 0; i < times; ++i) {
        DirectPart::Addition addition;
        if (shared.direct->add(0, ones, addition)) ++direct;
        std::uint64_t version = 0;
        if (!shared.direct->read(0, out, 0, version)) continue;
        for (const float value : out) {
          if (value != static_cast<float>(version)) is_torn = true;
        }
      }
    });
  }
  int owned = 0;
  for (int i = 0; i < times; ++i) {
    if (!shared.shard->acquire()) continue;
    DirectPart::Addition refused;
    CHECK_FALSE(shared.direct->add(0, ones, refused));
    // One addition, in two pieces.
    shared.shard->add({0, count, {}}, {}, 0, 200, ones.data(), 1);
    shared.shard->add({0, count, {}}, {}, 200, count, ones.data(), 1);
    shared.shard->count_addition();
    shared.shard->release();
    ++owned;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(is_torn);
  CHECK(direct > 0);
  CHECK(owned > 0);
  CHECK(shared.shard->version() == static_cast<std::uint64_t>(direct + owned));
  Floats out(count);
  shared.shard->read({0, count, {}}, 0, count, out.data());
  CHECK(out == Floats(count, static_cast<float>(direct + owned)));
}

TEST_CASE("a part goes by the clock that its owner tells, and is over once it is closed") {
  SharedDense shared(3, "adagrad");
  Floats out(3);
  std::uint64_t version = 0;
  CHECK(shared.direct->read(0, out, 0, version));
  CHECK_FALSE(shared.direct->read(0, out, 1, version));
  shared.shard->tell_least_clock(1);
  CHECK(shared.direct->read(0, out, 1, version));
  DirectPart::Addition addition{.factor = 2, .by_staleness = true, .seen = 0};
  const Floats two{2, 2};
  REQUIRE(shared.direct->add(1, two, addition));
  REQUIRE(shared.direct->add(1, two, addition));
  CHECK(addition.staleness == 1);
  Element element;
  element.add("adagrad", 2, 2);
  element.add("adagrad", 2, 1);
  REQUIRE(shared.direct->read(0, out, 0, version));
  CHECK(version == 2);
  CHECK(out == Floats{0, element.value, element.value});
  REQUIRE(shared.direct->write(0, two));
  CHECK(shared.shard->close_shared());
  CHECK_FALSE(shared.direct->write(0, two));
  CHECK_FALSE(shared.direct->read(0, out, 0, version));
}

TEST_CASE("who ends while changing a part leaves it torn; while reading it, whole") {
  const bool is_changing = GENERATE(false, true);
  SharedDense shared(3);
  // The end of the thread abandons the mutex, like the end of a process.
  std::thread([&] {
    static_cast<void>(::pthread_mutex_lock(&shared.part.mutex));
    shared.part.is_changing.store(is_changing ? 1 : 0);
  }).join();
  const Floats ones(3, 1);
  CHECK(shared.direct->write(0, ones) == !is_changing);
  CHECK(shared.shard->close_shared() == !is_changing);
}

TEST_CASE("rows that are there are read and added to by others, wherever their index has moved") {
  std::mt19937 random(7);
  SharedPart part{};
  REQUIRE(part.init());
  std::vector<std::shared_ptr<std::byte[]>> blocks;
  const ShardMemory place{.allocate =
                              [&](std::size_t bytes) {
                                blocks.emplace_back(new std::byte[bytes]());
                                return blocks.back();
                              },
                          .part = &part};
  const InitialRows initial{1, 0.5F, 9};
  RowShard shard(2, initial, rule_of("sum"), place);
  const DirectPart direct(part, nullptr, {.width = 2, .initial = initial}, rule_of("sum"), nullptr);
  std::map<std::int64_t, Floats> expected;
  for (int round = 0; round < 40; ++round) {
    std::vector<std::int64_t> made;
    for (int i = 0; i < 100; ++i) made.push_back(static_cast<std::int64_t>(random() % (1 << 20)));
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end()), made.end());
    const auto count = static_cast<std::int64_t>(made.size());
    const Floats delta = some(random, 2 * made.size());
    std::vector<std::int64_t> positions(made.size());
    std::iota(positions.begin(), positions.end(), 0);
    DirectPart::Addition addition;
    const bool all_there = std::all_of(made.begin(), made.end(),
                                       [&](std::int64_t row) { return expected.contains(row); });
    // An addition that cannot be done completely changes nothing.
    REQUIRE(direct.add_rows({made, positions}, delta.data(), addition) == all_there);
    REQUIRE(shard.acquire());
    add(shard, random, {0, count, made}, delta, 1);
    shard.release();
    REQUIRE(direct.add_rows({made, positions}, delta.data(), addition));
    for (std::size_t i = 0; i < made.size(); ++i) {
      auto [row, is_new] = expected.try_emplace(made[i], 2);
      if (is_new) fill_initial(initial, made[i], row->second);
      for (std::size_t column = 0; column < 2; ++column) {
        row->second[column] += delta[2 * i + column];
        row->second[column] += delta[2 * i + column];
      }
    }
  }
  std::vector<std::int64_t> all{std::int64_t{1} << 40};  // a row that was never created
  for (const auto& [row, values] : expected) all.push_back(row);
  expected[all.front()] = Floats(2);
  fill_initial(initial, all.front(), expected[all.front()]);
  std::vector<std::int64_t> positions(all.size());
  std::iota(positions.begin(), positions.end(), 0);
  Floats out(2 * all.size());
  std::uint64_t version = 0;
  REQUIRE(direct.read_rows({all, positions}, out.data(), 0, version));
  CHECK(version == 40);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(Floats(out.begin() + 2 * i, out.begin() + 2 * i + 2) == expected[all[i]]);
  }
}

}  // namespace
}  // namespace rueda::test::table_shard_test
