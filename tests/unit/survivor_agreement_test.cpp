// What the processes of a world agree on once some are lost, in a simulated network.
#include <numeric>

#include "unit/bytes.h"
#include "unit/contains.h"
#include "unit/survivor_simulator.h"

namespace rueda::test::survivor_agreement_test {
namespace {

using State = SurvivorSimulator::State;

std::vector<int> up_to(int size) {
  std::vector<int> numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::vector<int> shuffled(SurvivorSimulator& simulator, int size) {
  std::vector<int> numbers = up_to(size);
  for (int last = size - 1; last > 0; --last) {
    std::swap(numbers[static_cast<std::size_t>(last)],
              numbers[static_cast<std::size_t>(simulator.below(last + 1))]);
  }
  return numbers;
}

// Cuts each link between the two in both directions.
void separate(SurvivorSimulator& simulator, double delay, const std::vector<int>& left,
              const std::vector<int>& right) {
  for (const int one : left) {
    for (const int other : right) {
      simulator.cut(delay, one, other);
      simulator.cut(delay, other, one);
    }
  }
}

// All the others are lost, with a cause each.
void require_causes(SurvivorSimulator& simulator, const std::vector<int>& survivors) {
  for (const int number : survivors) {
    std::vector<int> lost;
    for (const auto& [member, cause] : simulator.process(number).lost) {
      CAPTURE(number, member);
      REQUIRE(contains(cause, str("rank ", member)));
      lost.push_back(member);
    }
    for (const int member : survivors) REQUIRE_FALSE(rueda::contains(lost, member));
  }
}

}  // namespace

TEST_CASE("survivors of processes that end, whenever they do, form one world of exactly them") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(2, 10));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 60)));
  CAPTURE(options.size, options.seed);
  SurvivorSimulator simulator(options);
  std::vector<int> survivors = shuffled(simulator, options.size);
  const int losses = 1 + simulator.below(options.size - 1);
  const double span = simulator.below(2) == 0 ? 0.2 : 1.5;
  for (int i = 0; i < losses; ++i) {
    simulator.end(1 + simulator.real(span), survivors.back());
    survivors.pop_back();
  }
  std::sort(survivors.begin(), survivors.end());
  simulator.run(1 + span + 0.5);
  simulator.require_world_of(survivors);
  simulator.require_rest();
  simulator.require_one_world();
}

TEST_CASE("while a majority lives, processes that fall silent are lost, whatever else ends") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(3, 10));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 60)));
  CAPTURE(options.size, options.seed);
  SurvivorSimulator simulator(options);
  std::vector<int> survivors = shuffled(simulator, options.size);
  const int losses = 1 + simulator.below((options.size - 1) / 2);
  for (int i = 0; i < losses; ++i) {
    const double when = 1 + simulator.real(2);
    if (i == 0 || simulator.below(2) == 0) {
      simulator.freeze(when, survivors.back(), 1000);
    } else {
      simulator.end(when, survivors.back());
    }
    survivors.pop_back();
  }
  std::sort(survivors.begin(), survivors.end());
  simulator.run(10);
  simulator.require_world_of(survivors);
  simulator.require_one_world();
}

TEST_CASE("of the sides of a partition the larger goes on, or the one with the lowest number") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(2, 10));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 60)));
  CAPTURE(options.size, options.seed);
  SurvivorSimulator simulator(options);
  const std::vector<int> order = shuffled(simulator, options.size);
  const auto middle = order.begin() + 1 + simulator.below(options.size - 1);
  std::vector<int> left(order.begin(), middle);
  std::vector<int> right(middle, order.end());
  std::sort(left.begin(), left.end());
  std::sort(right.begin(), right.end());
  separate(simulator, 1, left, right);
  const bool is_left = left.size() > right.size() || (left.size() == right.size() && left < right);
  simulator.run(6);
  simulator.require_world_of(is_left ? left : right);
  require_causes(simulator, is_left ? left : right);
  for (const int number : is_left ? right : left) {
    const auto& process = simulator.process(number);
    CAPTURE(number, process.error.to_string());
    REQUIRE(process.state == State::stopped);
    REQUIRE(process.error.code() == ErrorCode::peer_lost);
    for (const int lost : is_left ? left : right) {
      REQUIRE(contains(process.error, str("rank ", lost, ": ")));
    }
  }
}

TEST_CASE("of two that do not reach each other one goes, the same for all") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(2, 10));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 40)));
  const bool both_ways = GENERATE(false, true);
  CAPTURE(options.size, options.seed, both_ways);
  SurvivorSimulator simulator(options);
  const std::vector<int> order = shuffled(simulator, options.size);
  simulator.cut(1, order[0], order[1]);
  if (both_ways) simulator.cut(1, order[1], order[0]);
  simulator.run(8);
  simulator.require_rest();
  simulator.require_one_world();
  std::vector<int> living;
  for (int number = 0; number < options.size; ++number) {
    if (simulator.process(number).state == State::in_world) living.push_back(number);
  }
  REQUIRE(living.size() == static_cast<std::size_t>(options.size - 1));
  simulator.require_world_of(living);
}

TEST_CASE("a process that hears nobody, or that nobody hears, goes, and no other") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(3, 8));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 20)));
  const bool is_deaf = GENERATE(false, true);
  CAPTURE(options.size, options.seed, is_deaf);
  SurvivorSimulator simulator(options);
  const int victim = simulator.below(options.size);
  std::vector<int> others = up_to(options.size);
  std::erase(others, victim);
  for (const int other : others) {
    simulator.cut(1, is_deaf ? other : victim, is_deaf ? victim : other);
  }
  simulator.run(8);
  simulator.require_world_of(others);
  require_causes(simulator, others);
  REQUIRE(simulator.process(victim).state == State::stopped);
}

TEST_CASE("a process that wakes up when the others have gone on stops, and says why") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(3, 8));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 30)));
  const bool others_end = GENERATE(false, true);
  CAPTURE(options.size, options.seed, others_end);
  SurvivorSimulator simulator(options);
  const int victim = simulator.below(options.size);
  std::vector<int> others = up_to(options.size);
  std::erase(others, victim);
  const bool agrees = simulator.below(2) == 0;  // when it falls asleep
  if (agrees) simulator.break_world(0.999, others.front());
  simulator.freeze(1 + (agrees ? 0 : simulator.real(0.1)), victim, 5);
  if (others_end) {
    for (const int other : others) simulator.end(3 + simulator.real(1), other);
  }
  simulator.run(10);
  const auto& process = simulator.process(victim);
  CAPTURE(process.error.to_string());
  // Without it the others can have gone on only where they were the majority.
  REQUIRE(process.state == State::stopped);
  if (!others_end) {
    simulator.require_world_of(others);
    REQUIRE(contains(process.error, str("have gone on without rank ", victim)));
  }
  simulator.require_one_world();
}

TEST_CASE("who gives up a world that others have formed loses nobody and is not lost") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(2, 9));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 60)));
  CAPTURE(options.size, options.seed);
  SurvivorSimulator simulator(options);
  simulator.set_lost_arrivals(0.5);
  const int victim = simulator.below(options.size);
  const bool is_lost = simulator.below(2) == 0;
  simulator.break_world(1, (victim + 1) % options.size);
  if (is_lost) simulator.end(1, victim);
  for (int i = 0; i < 4; ++i) {
    simulator.give_up_forming(1 + simulator.real(0.2), simulator.below(options.size));
  }
  simulator.run(20);
  simulator.set_lost_arrivals(0);
  simulator.run(10);
  std::vector<int> living = up_to(options.size);
  if (is_lost) std::erase(living, victim);
  simulator.require_world_of(living);
  simulator.require_rest();
}

TEST_CASE("whatever happens, no two worlds live, and everybody gets an answer") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(range(2, 10));
  options.seed = static_cast<unsigned>(GENERATE(range(1, 250)));
  options.max_delay = options.seed % 3 == 0 ? 0.1 : 0.02;
  options.lost_arrivals = options.seed % 2 == 0 ? 0.2 : 0;
  CAPTURE(options.size, options.seed);
  SurvivorSimulator simulator(options);
  const auto any = [&] { return simulator.below(options.size); };
  const double span = GENERATE(0.5, 4.0);
  for (int event = 2 + simulator.below(3 * options.size); event > 0; --event) {
    const double when = 1 + simulator.real(span);
    const int one = any();
    const int other = (one + 1 + simulator.below(options.size - 1)) % options.size;
    const double until = simulator.below(2) == 0 ? when + simulator.real(3) : 20;
    switch (simulator.below(6)) {
      case 0: simulator.end(when, one); break;
      case 1: simulator.freeze(when, one, until - when); break;
      case 2:
        simulator.cut(when, one, other);
        simulator.mend(until, one, other);
        break;
      case 3: simulator.give_up_forming(when, one); break;
      case 4: simulator.break_world(when, one); break;
      default: {
        const std::vector<int> order = shuffled(simulator, options.size);
        const auto middle = order.begin() + 1 + simulator.below(options.size - 1);
        const std::vector<int> left(order.begin(), middle);
        const std::vector<int> right(middle, order.end());
        separate(simulator, when, left, right);
        for (const int from : left) {
          for (const int to : right) {
            simulator.mend(until, from, to);
            simulator.mend(until, to, from);
          }
        }
      }
    }
  }
  simulator.run(25);
  simulator.set_lost_arrivals(0);
  simulator.run(15);
  simulator.require_one_world();
  simulator.require_rest();
}

}  // namespace rueda::test::survivor_agreement_test
