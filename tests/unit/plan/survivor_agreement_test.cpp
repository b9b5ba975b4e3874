// What the processes of a world agree on after some are lost, in a simulated network.
#include <algorithm>
#include <numeric>
#include <vector>

#include "effort.h"
#include "ranks/survivor_simulator.h"
#include "unit/bytes.h"
#include "unit/contains.h"

namespace rueda::test::survivor_agreement_test {
namespace {

using State = SurvivorSimulator::State;

// Seeds below `limit`. Under AddressSanitizer, which checks the code rather than its results and is
// 16 times slower, an eighth of them.
constexpr int seeds_below(int limit) {
  return effort(limit, 2 + (limit - 2) / 8);
}

// World sizes from `first` to `end`, exclusive; under a sanitizer with growing gaps: 2, 3, 5, 8.
std::vector<int> sizes(int first, int end) {
  std::vector<int> all;
  for (int size = first; size < end; size += effort(1, (size + 1) / 2)) all.push_back(size);
  return all;
}

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

// Cuts all links between the two sides in both directions.
void separate(SurvivorSimulator& simulator, double delay, const std::vector<int>& left,
              const std::vector<int>& right) {
  for (const int one : left) {
    for (const int other : right) {
      simulator.cut(delay, one, other);
      simulator.cut(delay, other, one);
    }
  }
}

// Of a network whose delays and losses differ between seeds.
SurvivorSimulator::Options options_of(int size, int seed) {
  SurvivorSimulator::Options options;
  options.size = size;
  options.seed = static_cast<unsigned>(seed);
  options.max_delay = options.seed % 3 == 0 ? 0.1 : 0.02;
  options.lost_arrivals = options.seed % 2 == 0 ? 0.2 : 0;
  return options;
}

// After all events: lets the processes come to rest.
void require_one_world_at_rest(SurvivorSimulator& simulator) {
  simulator.run(25);
  simulator.set_lost_arrivals(0);
  simulator.run(15);
  simulator.require_one_world();
  simulator.require_rest();
}

// Each lost process is listed with a cause that names it, and no survivor is listed.
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
  options.size = GENERATE(from_range(sizes(2, 10)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(25))));
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
  options.size = GENERATE(from_range(sizes(3, 10)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(25))));
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
  options.size = GENERATE(from_range(sizes(2, 10)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(25))));
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
  options.size = GENERATE(from_range(sizes(2, 10)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(25))));
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
  options.size = GENERATE(from_range(sizes(3, 8)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(20))));
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
  options.size = GENERATE(from_range(sizes(3, 8)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(30))));
  const bool others_end = GENERATE(false, true);
  CAPTURE(options.size, options.seed, others_end);
  SurvivorSimulator simulator(options);
  const int victim = simulator.below(options.size);
  std::vector<int> others = up_to(options.size);
  std::erase(others, victim);
  const bool agrees = simulator.below(2) == 0;  // when it freezes
  if (agrees) simulator.break_world(0.999, others.front());
  simulator.freeze(1 + (agrees ? 0 : simulator.real(0.1)), victim, 5);
  if (others_end) {
    for (const int other : others) simulator.end(3 + simulator.real(1), other);
  }
  simulator.run(10);
  const auto& process = simulator.process(victim);
  CAPTURE(process.error.to_string());
  // The others can have gone on without it only if they were the majority.
  REQUIRE(process.state == State::stopped);
  if (!others_end) {
    simulator.require_world_of(others);
    REQUIRE(contains(process.error, str("have gone on without rank ", victim)));
  }
  simulator.require_one_world();
}

TEST_CASE("who gives up a world that others have formed loses nobody and is not lost") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(from_range(sizes(2, 9)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(25))));
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
  const int size = GENERATE(from_range(sizes(2, 10)));
  const int seed = GENERATE(range(1, seeds_below(80)));
  const SurvivorSimulator::Options options = options_of(size, seed);
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
  require_one_world_at_rest(simulator);
}

TEST_CASE("on one host, however many are frozen, the others go on, and nobody else does") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(from_range(sizes(2, 8)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(40))));
  options.is_one_host = true;
  CAPTURE(options.size, options.seed);
  SurvivorSimulator simulator(options);
  const std::vector<int> order = shuffled(simulator, options.size);
  const auto frozen = order.begin() + 1 + simulator.below(options.size - 1);
  const double span = GENERATE(0.0, 0.5, 4.0);
  for (auto one = order.begin(); one != frozen; ++one) {
    simulator.freeze(1 + simulator.real(span), *one, 1000);
  }
  simulator.run(20);
  std::vector<int> others(frozen, order.end());
  std::sort(others.begin(), others.end());
  simulator.require_world_of(others);
  for (auto one = order.begin(); one != frozen; ++one) {
    REQUIRE(simulator.process(*one).state == State::ended);
  }
}

TEST_CASE("after a pause of its own, a process takes nobody for silent") {
  SurvivorAgreement::Settings settings;
  settings.members = {0, 1, 2};
  settings.timeout = seconds(1);
  settings.is_one_host = true;
  SurvivorAgreement agreement(settings, Time{});
  agreement.advance(Time{} + seconds(0.2));
  REQUIRE(agreement.silent(Time{} + seconds(5)).empty());
  double now = 5.2;
  std::vector<int> silent;
  for (; now < 9 && silent.empty(); now += 0.2) {
    silent = agreement.silent(Time{} + seconds(now));
    if (silent.empty()) agreement.advance(Time{} + seconds(now));
  }
  REQUIRE(now > 6);
  REQUIRE(silent == std::vector<int>{1, 2});
}

TEST_CASE("on one host, whatever is frozen or ends, no two worlds live") {
  const int size = GENERATE(from_range(sizes(2, 10)));
  const int seed = GENERATE(range(1, seeds_below(120)));
  SurvivorSimulator::Options options = options_of(size, seed);
  options.is_one_host = true;
  CAPTURE(options.size, options.seed);
  SurvivorSimulator simulator(options);
  const double span = GENERATE(0.5, 4.0);
  for (int event = 2 + simulator.below(3 * options.size); event > 0; --event) {
    const double when = 1 + simulator.real(span);
    const int one = simulator.below(options.size);
    switch (simulator.below(4)) {
      case 0: simulator.end(when, one); break;
      case 1: simulator.freeze(when, one, simulator.below(2) == 0 ? simulator.real(3) : 20); break;
      case 2: simulator.give_up_forming(when, one); break;
      default: simulator.break_world(when, one);
    }
  }
  require_one_world_at_rest(simulator);
}

TEST_CASE("a loss costs each survivor a few messages to each other, however it comes") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(from_range(sizes(3, 16)));
  options.seed = static_cast<unsigned>(GENERATE(range(1, seeds_below(10))));
  const bool is_frozen = GENERATE(false, true);
  CAPTURE(options.size, options.seed, is_frozen);
  SurvivorSimulator simulator(options);
  const int victim = simulator.below(options.size);
  if (is_frozen) {
    simulator.freeze(1, victim, 1000);
  } else {
    simulator.end(1, victim);
  }
  simulator.run(3);
  std::vector<int> others = up_to(options.size);
  std::erase(others, victim);
  simulator.require_world_of(others);
  // Each member sends its news to every other once and gets one answer; if all notice a silent
  // member at once, the news spreads in a few steps.
  const int pairs = (options.size - 1) * (options.size - 1);
  REQUIRE(simulator.sent() <= 6 * pairs);
}

TEST_CASE("where fewer are left than are demanded, all stop and say who is lost") {
  SurvivorSimulator::Options options;
  options.size = GENERATE(3, 5);
  options.min_size = options.size - 1;
  SurvivorSimulator simulator(options);
  simulator.end(1, 1);
  simulator.run(2);
  REQUIRE(simulator.process(0).state == State::in_world);
  simulator.end(0.1, 2);
  simulator.run(2);
  for (int number = 0; number < options.size; ++number) {
    if (number == 1 || number == 2) continue;
    const auto& process = simulator.process(number);
    REQUIRE(process.state == State::stopped);
    REQUIRE(contains(process.error, str("are left, fewer than ", options.min_size)));
    // Process 2, as the simulator names it, was rank 1 in the world without process 1.
    REQUIRE(contains(process.error, "rank 1: rank 2 was killed"));
  }
}

namespace {

SurvivorAgreement::Settings settings_of(int rank, int size) {
  SurvivorAgreement::Settings settings;
  settings.rank = rank;
  settings.members = up_to(size);
  settings.epoch = 7;
  settings.timeout = seconds(1);
  return settings;
}

// Exchanges messages between the two until neither has any left.
void exchange(SurvivorAgreement& left, int left_rank, SurvivorAgreement& right, int right_rank,
              Time now) {
  for (bool is_busy = true; is_busy;) {
    is_busy = false;
    for (auto& message : left.take_messages()) {
      if (message.member == right_rank)
        right.receive(left_rank, message.bytes, now), is_busy = true;
    }
    for (auto& message : right.take_messages()) {
      if (message.member == left_rank) left.receive(right_rank, message.bytes, now), is_busy = true;
    }
  }
}

}  // namespace

TEST_CASE("a process alone decides at once, also where the others have ended") {
  const Time now{};
  SurvivorAgreement alone(settings_of(0, 1), now);
  REQUIRE(alone.decision());
  REQUIRE((*alone.decision())->members == std::vector<int>{0});
  REQUIRE((*alone.decision())->epoch > 7);
  SurvivorAgreement last(settings_of(1, 2), now);
  REQUIRE_FALSE(last.decision());
  last.lose(0, Loss::ended, Status(ErrorCode::peer_lost, "killed by signal 9"), now);
  REQUIRE(last.decision());
  REQUIRE((*last.decision())->members == std::vector<int>{1});
  REQUIRE((*last.decision())->lost.size() == 1);
  REQUIRE((*last.decision())->lost.front().second.to_string() == "killed by signal 9");
}

TEST_CASE("errors name members by their ranks in the world that broke") {
  const Time now{};
  auto settings = settings_of(4, 0);
  settings.members = {1, 4, 7};
  settings.min_size = 2;
  SurvivorAgreement agreement(settings, now);
  agreement.lose(1, Loss::ended, Status(ErrorCode::peer_lost, "killed by signal 9", 0), now);
  REQUIRE_FALSE(agreement.decision());
  for (int tenth = 1; tenth <= 20; ++tenth) agreement.advance(now + seconds(0.1 * tenth));
  REQUIRE(agreement.decision());
  const Status& error = agreement.decision()->status();
  CAPTURE(error.to_string());
  REQUIRE(
      contains(error, "; rank 0: killed by signal 9; rank 2: rank 1 has not heard from rank 2"));
  REQUIRE(error.peer() == 0);

  SurvivorAgreement expelled(settings, now);
  expelled.receive(7, encode(EpochHasGoneOn{9, {1, 7}, {}}), now);
  REQUIRE(expelled.decision());
  REQUIRE(contains(expelled.decision()->status(),
                   "have gone on without rank 1 (epoch 9: ranks 0 and 2)"));
}

TEST_CASE("for a process that was stopped, those that have ended may have gone on without it") {
  const Time now{};
  auto settings = settings_of(1, 2);
  settings.was_stopped = true;
  SurvivorAgreement stopped(settings, now);
  stopped.lose(0, Loss::ended, Status(ErrorCode::peer_lost, "closed"), now);
  REQUIRE(stopped.decision());
  REQUIRE_FALSE(stopped.decision()->ok());
  // It does not matter when it was stopped: before the agreement or during it.
  SurvivorAgreement paused(settings_of(1, 2), now);
  paused.advance(now + seconds(0.8));
  paused.lose(0, Loss::ended, Status(ErrorCode::peer_lost, "closed"), now + seconds(0.8));
  REQUIRE(paused.decision());
  REQUIRE_FALSE(paused.decision()->ok());
}

TEST_CASE("a member that a lost one said nothing to for long is not taken for ended") {
  const Time now{};
  SurvivorAgreement late(settings_of(1, 2), now);
  for (int beat = 1; beat <= 6; ++beat) late.advance(now + seconds(0.1 * beat));
  late.lose(0, Loss::ended, Status(ErrorCode::peer_lost, "closed"), now + seconds(0.6));
  REQUIRE(late.decision());
  REQUIRE_FALSE(late.decision()->ok());
}

TEST_CASE("a member that is seen to be alive is waited for up to four times as long") {
  SurvivorAgreement waiting(settings_of(0, 2), Time());
  Time now{};
  int excuses = 0;
  while (!waiting.decision()) {
    now = *waiting.next_deadline();
    if (!waiting.silent(now).empty()) {
      REQUIRE(waiting.silent(now) == std::vector<int>{1});
      waiting.excuse(1, now);
      ++excuses;
    }
    waiting.advance(now);
  }
  REQUIRE((*waiting.decision())->members == std::vector<int>{0});
  REQUIRE(excuses > 20);
  REQUIRE(now >= Time() + seconds(4));
  REQUIRE(now <= Time() + seconds(4.25));
}

TEST_CASE("a member that is late itself does not take that for the others' silence") {
  SurvivorAgreement waiting(settings_of(0, 2), Time());
  Time now{};
  while (!waiting.decision()) waiting.advance(now = *waiting.next_deadline() + seconds(0.4));
  REQUIRE((*waiting.decision())->members == std::vector<int>{0});
  REQUIRE(now >= Time() + seconds(2));
}

TEST_CASE("a world that was not formed is formed under a higher number") {
  const Time now{};
  SurvivorAgreement left(settings_of(0, 2), now);
  SurvivorAgreement right(settings_of(1, 2), now);
  exchange(left, 0, right, 1, now);
  REQUIRE(left.decision());
  const std::uint64_t first = (*left.decision())->epoch;
  left.not_formed(first, now);
  REQUIRE_FALSE(left.decision());
  exchange(left, 0, right, 1, now);
  REQUIRE(left.decision());
  REQUIRE((*left.decision())->epoch > first);
  REQUIRE((*right.decision())->epoch == (*left.decision())->epoch);
  right.not_formed(first, now);  // too late
  REQUIRE(right.decision());
}

TEST_CASE("messages of other epochs and of nobody are ignored and counted, or answered") {
  const Time now{};
  SurvivorAgreement agreement(settings_of(0, 3), now);
  static_cast<void>(agreement.take_messages());
  agreement.receive(1, bytes({}), now);
  agreement.receive(1, bytes({1, 0, 7}), now);
  agreement.receive(1, bytes({9, 9, 9, 9}), now);
  REQUIRE(agreement.messages_ignored() == 3);
  SurvivorView view;
  view.epoch = 7;
  view.proposal = 8;
  agreement.receive(5, encode(view), now);  // not a member
  agreement.receive(0, encode(view), now);  // itself
  view.ended[4] = Status(ErrorCode::peer_lost, "no member");
  agreement.receive(1, encode(view), now);
  REQUIRE(agreement.messages_ignored() == 6);
  REQUIRE(SurvivorAgreement::epoch_of(encode(view)) == 7);
  REQUIRE_FALSE(SurvivorAgreement::epoch_of(bytes({1, 0, 7})));
  view = {};
  view.epoch = 6;
  view.proposal = 7;
  agreement.receive(5, encode(view), now);
  const auto answers = agreement.take_messages();
  REQUIRE(answers.size() == 1);
  REQUIRE(answers.front().member == 5);
  REQUIRE_FALSE(SurvivorAgreement::epoch_of(answers.front().bytes));
  const auto answer = decode_survivor_message(answers.front().bytes);
  REQUIRE(answer);
  REQUIRE(std::get<EpochHasGoneOn>(*answer).epoch == 7);
  REQUIRE_FALSE(agreement.decision());
}

}  // namespace rueda::test::survivor_agreement_test
