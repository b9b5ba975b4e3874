// Hosts driven by the test: members join and cancel rounds on their host's readiness table, leaders
// speak for them, and the test delivers the messages.
#include "coordinator/round_leader.h"

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "effort.h"

namespace rueda::test::round_leader_test {

namespace {

constexpr int slots = 10;

using State = ReadinessTable::State;
using Joined = ReadinessTable::Joined;
using Audience = ReadinessTable::Audience;

RoundLeader::Along nothing_along() {
  using Bytes = RoundAgreement::Bytes;
  return {[](ReadinessTable::Plan) { return Bytes(); },
          [](ReadinessTable::Plan, const std::vector<Bytes>&, bool) { return Bytes(); },
          [](ReadinessTable::Plan, const Bytes&) {}};
}

struct alignas(64) CacheLine {
  std::array<std::byte, 64> bytes{};
};

// A member of the set; does the part of Replay.
struct Member {
  struct Plan {
    std::uint64_t rounds = 0;
    bool joined = false;
    bool off = false;
  };
  Member(const ReadinessTable& shared, RoundLeader* leads) : table(shared), leader(leads) {}

  void learn() {
    const ReadinessTable::Plan place = place_of(static_cast<int>(plans.size()));
    plans.emplace_back();
    if (leader != nullptr) leader->learn(place);
  }
  void join(int index) {
    Plan& plan = at(index);
    if (plan.joined || plan.off) return;
    plan.joined = table.join(place_of(index), plan.rounds) != Joined::off;
    plan.off = !plan.joined;
  }
  void cancel(int index, Audience audience = Audience::all_hosts) {
    at(index).off = true;
    table.cancel(place_of(index), audience);
  }
  void look() {
    while (const auto entry = table.read(read)) {
      ++read;
      Plan& plan = at(entry->slot);
      REQUIRE(plan.joined);
      plan.joined = false;
      ++plan.rounds;
      executed.push_back(entry->slot);
    }
    for (int index = 0; index < static_cast<int>(plans.size()); ++index) {
      Plan& plan = at(index);
      if (plan.joined && table.look(place_of(index), plan.rounds) == State::off) {
        plan.joined = false;
        plan.off = true;
      }
    }
  }
  Plan& at(int index) { return plans[static_cast<std::size_t>(index)]; }
  static ReadinessTable::Plan place_of(int index) {
    return {index, static_cast<std::uint64_t>(index) + 1};
  }

  ReadinessTable table;
  RoundLeader* leader;
  std::vector<Plan> plans;
  std::vector<int> executed;
  std::uint64_t read = 0;
};

class Hosts {
 public:
  // `sizes`: the number of members of each host.
  explicit Hosts(const std::vector<int>& sizes, unsigned seed = 1) : random(seed) {
    for (int host = 0; host < static_cast<int>(sizes.size()); ++host) {
      const int size = sizes[static_cast<std::size_t>(host)];
      memory_.emplace_back(ReadinessTable::bytes(slots) / sizeof(CacheLine) + 1);
      const ReadinessTable table(memory_.back().front().bytes.data(), slots, size,
                                 ReadinessTable::Decided::by_hosts);
      leaders.push_back(std::make_unique<RoundLeader>(table, host, static_cast<int>(sizes.size()),
                                                      nothing_along()));
      for (int member = 0; member < size; ++member) {
        members.emplace_back(table, member == 0 ? leaders.back().get() : nullptr);
      }
    }
  }
  void learn() {
    for (Member& member : members) member.learn();
  }
  void lead(int host) {
    RoundLeader& leader = *leaders[static_cast<std::size_t>(host)];
    (void)leader.step();
    for (RoundAgreement::Outgoing& outgoing : leader.take_outgoing()) {
      queues_[{host, outgoing.host}].push_back(std::move(outgoing.message));
    }
  }
  bool deliver() {
    if (queues_.empty()) return false;
    auto queue = queues_.begin();
    std::advance(queue, static_cast<std::ptrdiff_t>(below(queues_.size())));
    const auto [from, to] = queue->first;
    REQUIRE(leaders[static_cast<std::size_t>(to)]->receive(from, queue->second.front()));
    queue->second.pop_front();
    if (queue->second.empty()) queues_.erase(queue);
    return true;
  }
  void settle() {
    do {
      for (int host = 0; host < static_cast<int>(leaders.size()); ++host) lead(host);
    } while (deliver());
    for (Member& member : members) member.look();
  }
  std::size_t below(std::size_t limit) { return random() % limit; }

  std::mt19937 random;
  std::vector<std::unique_ptr<RoundLeader>> leaders;
  std::deque<Member> members;  // in order of hosts

 private:
  std::deque<std::vector<CacheLine>> memory_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> queues_;
};

}  // namespace

TEST_CASE("a round goes once all members of all hosts have joined it") {
  Hosts hosts({2, 1});
  hosts.learn();
  for (std::size_t round = 1; round < 5000; ++round) {  // more rounds than a word can count
    for (Member& member : hosts.members) {
      hosts.settle();
      REQUIRE(member.executed.size() == round - 1);
      member.join(0);
    }
    hosts.settle();
    for (const Member& member : hosts.members) REQUIRE(member.executed.size() == round);
  }
  CHECK_FALSE(hosts.leaders[0]->waits());
}

TEST_CASE("who cancels a round that all members of a host have joined waits for the hosts") {
  Hosts hosts({2, 2});
  hosts.learn();
  hosts.members[2].join(0);
  hosts.members[3].join(0);
  hosts.lead(1);
  hosts.members[3].cancel(0);
  hosts.members[3].look();
  CHECK(hosts.members[3].at(0).joined);
  CHECK(hosts.members[3].table.look({0, 1}, 0) == State::undecided);
  CHECK(hosts.leaders[1]->waits());
  const bool goes = GENERATE(true, false);
  if (goes) {
    (void)hosts.deliver();  // host 1 is ready; its member's cancellation is still queued
    hosts.members[0].join(0);
    hosts.members[1].join(0);
  }
  hosts.settle();
  for (Member& member : hosts.members) {
    CHECK(member.executed.size() == (goes ? 1 : 0));
    CHECK_FALSE(member.at(0).joined);
    CHECK(member.table.is_cancelled({0, 1}));
  }
}

TEST_CASE("what a host has told nobody it cancels by itself") {
  Hosts hosts({1, 2});
  hosts.learn();
  hosts.members[1].join(0);
  hosts.members[2].join(0);
  hosts.members[2].cancel(0);
  hosts.lead(1);
  hosts.members[1].look();
  CHECK_FALSE(hosts.members[1].at(0).joined);
}

TEST_CASE("a plan can be cancelled before others have learned of it") {
  Hosts hosts({2, 2});
  // Before its own leader learns of the plan (1, 3), or before the other host does (0, 2).
  const std::size_t early = GENERATE(0, 1, 2, 3);
  hosts.members[early].learn();
  hosts.members[early].cancel(0);
  hosts.settle();
  for (std::size_t member = 0; member < 4; ++member) {
    if (member != early) hosts.members[member].learn();
  }
  hosts.settle();
  for (Member& member : hosts.members) {
    CHECK(member.table.is_cancelled({0, 1}));
    member.join(0);
    CHECK(member.at(0).off);
  }
}

TEST_CASE("what all hosts forget is not told, unless it is undecided") {
  Hosts hosts({1, 1});
  hosts.learn();
  const bool ready = GENERATE(true, false);
  if (ready) hosts.members[1].join(0);
  hosts.lead(1);
  for (Member& member : hosts.members) {
    member.cancel(0, Audience::own_host);
    member.leader->forget({0, 1});
  }
  CHECK(hosts.deliver() == ready);
  hosts.settle();
  hosts.members[1].look();
  CHECK_FALSE(hosts.members[1].at(0).joined);
  CHECK_FALSE(hosts.leaders[1]->waits());
}

TEST_CASE("the end on one host is that of all rounds on all hosts") {
  Hosts hosts({1, 2, 1, 1, 1, 1});
  hosts.learn();
  for (std::size_t member = 0; member + 1 < hosts.members.size(); ++member) {
    hosts.members[member].join(0);
  }
  hosts.settle();
  CHECK(hosts.leaders[0]->is_needed());
  CHECK(hosts.leaders[1]->is_needed());
  CHECK_FALSE(hosts.leaders[5]->is_needed());
  hosts.leaders[5]->end();
  hosts.settle();
  hosts.learn();
  for (std::size_t host = 0; host < 6; ++host) {
    CHECK_FALSE(hosts.leaders[host]->is_needed());
    CHECK_FALSE(hosts.leaders[host]->waits());
  }
  for (Member& member : hosts.members) {
    CHECK_FALSE(member.at(0).joined);
    member.join(1);
    CHECK(member.at(1).off);
  }
}

// Every member joins rounds in a different order, learns of plans at random times, and sometimes
// cancels one.
TEST_CASE("all members of all hosts execute the same rounds in the same order") {
  const auto sizes = GENERATE(std::vector<int>{2, 2}, std::vector<int>{1, 3},
                              std::vector<int>{3, 1, 2}, std::vector<int>{1, 1, 2, 1, 1, 2, 1});
  const auto seed = static_cast<unsigned>(GENERATE(range(1, effort(60, 10))));
  CAPTURE(sizes, seed);
  Hosts hosts(sizes, seed);
  const std::size_t count = hosts.members.size();
  for (std::size_t step = 0; step < 6000 * count; ++step) {
    Member& member = hosts.members[hosts.below(count)];
    const auto index = static_cast<int>(hosts.below(slots));
    switch (hosts.below(5)) {
      case 0:
        if (index == 0 && member.plans.size() < slots) member.learn();
        break;
      case 1: hosts.lead(static_cast<int>(hosts.below(sizes.size()))); break;
      case 2: hosts.deliver(); break;
      case 3:
        if (index >= static_cast<int>(member.plans.size())) break;
        if (hosts.below(60 * count) == 0) {
          member.cancel(index);
        } else {
          member.join(index);
        }
        break;
      default: member.look();
    }
  }
  for (Member& member : hosts.members) {
    while (member.plans.size() < slots) member.learn();
  }
  Member& last = hosts.members.back();
  for (int index = 0; index < slots; ++index) last.cancel(index);
  hosts.settle();
  for (Member& member : hosts.members) {
    REQUIRE(member.executed == hosts.members[0].executed);
    for (const Member::Plan& plan : member.plans) REQUIRE_FALSE(plan.joined);
    for (int index = 0; index < slots; ++index) {
      REQUIRE(member.table.is_cancelled(Member::place_of(index)));
    }
  }
  CHECK_FALSE(hosts.members[0].executed.empty());
}

}  // namespace rueda::test::round_leader_test
