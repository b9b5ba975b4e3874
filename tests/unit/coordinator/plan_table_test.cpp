// The plans that members make of agreed responses.
#include "coordinator/plan_table.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "core/strings.h"

namespace rueda::test::plan_table_test {

namespace {

Response response_of(const std::string& name, const std::string& group = {}, int group_size = 0) {
  Response response;
  response.request.name = name;
  response.request.shape = {4};
  response.request.group = group;
  response.request.group_size = group_size;
  return response;
}

std::vector<const Fusion*> pointers_to(const std::vector<Fusion>& batches) {
  std::vector<const Fusion*> pointers;
  for (const Fusion& batch : batches) pointers.push_back(&batch);
  return pointers;
}

ReplayPlan& add(PlanTable& table, const std::string& name) {
  const ResponseList responses{response_of(name)};
  const std::vector<Fusion> batches{{{0}}};
  return table.add(responses, pointers_to(batches));
}

// Random responses of random groups, batched at random.
struct Agreed {
  ResponseList responses;
  std::vector<Fusion> batches;
};

Agreed agreed_at_random(std::mt19937& random) {
  const auto below = [&random](int limit) {
    return std::uniform_int_distribution<int>(0, limit - 1)(random);
  };
  Agreed agreed;
  const int count = 1 + below(12);
  const int groups = 1 + below(5);
  for (int i = 0; i < count; ++i) {
    const int group = below(groups + 1);  // `groups` means no group
    agreed.responses.push_back(response_of(str("t", i), group == groups ? "" : str("g", group)));
    if (agreed.batches.empty() || below(2) == 0) agreed.batches.emplace_back();
    agreed.batches.back().members.push_back(static_cast<std::size_t>(i));
  }
  return agreed;
}

// For each batch, the first one connected to it by common groups, directly or through others.
std::vector<std::size_t> first_in_common(const Agreed& agreed) {
  std::vector<std::size_t> first(agreed.batches.size());
  for (std::size_t batch = 0; batch < first.size(); ++batch) first[batch] = batch;
  for (bool changed = true; changed;) {
    changed = false;
    std::map<std::string, std::size_t> of_group;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t batch = 0; batch < first.size(); ++batch) {
        for (const std::size_t member : agreed.batches[batch].members) {
          const std::string& group = agreed.responses[member].request.group;
          if (group.empty()) continue;
          auto& lowest = of_group.try_emplace(group, first[batch]).first->second;
          lowest = std::min(lowest, first[batch]);
          changed = changed || lowest < first[batch];
          first[batch] = lowest;
        }
      }
    }
  }
  return first;
}

}  // namespace

TEST_CASE("batches are one plan where groups join them, and each is in one plan") {
  std::mt19937 random(GENERATE(range(0U, 200U)));
  const Agreed agreed = agreed_at_random(random);
  const auto plans = batches_of_plans(agreed.responses, agreed.batches);
  const std::vector<std::size_t> first = first_in_common(agreed);
  std::set<std::size_t> seen;
  for (const auto& plan : plans) {
    REQUIRE_FALSE(plan.empty());
    std::set<std::size_t> parts;
    for (const Fusion* batch : plan) {
      const auto index = static_cast<std::size_t>(batch - agreed.batches.data());
      CHECK(seen.insert(index).second);
      parts.insert(first[index]);
    }
    CHECK(parts.size() == 1);
  }
  CHECK(seen.size() == agreed.batches.size());
  CHECK(plans.size() == std::set<std::size_t>(first.begin(), first.end()).size());
}

TEST_CASE("only whole groups of what all took part in can be planned") {
  ResponseList responses{response_of("a", "g", 2), response_of("b", "g", 2), response_of("c")};
  const std::vector<Fusion> batches{{{0}}, {{1, 2}}};
  const auto all = pointers_to(batches);
  CHECK(can_be_planned(responses, all));
  CHECK_FALSE(can_be_planned(responses, std::span(all).first(1)));
  SECTION("a rank had joined") {
    responses[2].absent = {1};
  }
  SECTION("an error") {
    responses[2].kind = ResponseKind::error;
  }
  SECTION("a process set is added") {
    responses[2].request.collective = Collective::add_process_set;
  }
  SECTION("a group is larger") {
    responses[0].request.group_size = 3;
  }
  CHECK_FALSE(can_be_planned(responses, all));
}

TEST_CASE("members that make and forget the same plans find them in the same places") {
  constexpr int slots = 8;
  std::mt19937 random(GENERATE(range(0U, 50U)));
  std::array<PlanTable, 2> tables;
  for (PlanTable& table : tables) table.open(slots);
  std::map<int, int> last_use;  // by slot
  for (int made = 0; made < 100; ++made) {
    const std::string name = str("t", made);
    const ReadinessTable::Plan place = add(tables[0], name).place;
    const ReadinessTable::Plan other = add(tables[1], name).place;
    CHECK((place.slot == other.slot && place.number == other.number));
    CHECK(place.number == static_cast<std::uint64_t>(made + 1));
    CHECK(tables[0].in_slot(place.slot) == tables[0].find(name)->plan);
    // A slot is reused as late as possible.
    const auto used = last_use.find(place.slot);
    if (used != last_use.end()) CHECK(made - used->second >= slots / 2);
    last_use[place.slot] = made;
    if (tables[0].size() < slots / 2) continue;
    const auto victim = random() % tables[0].size();
    for (PlanTable& table : tables) {
      ReplayPlan& plan = *table.all()[victim];
      const std::string forgotten = plan.batches[0][0].response->request.name;
      last_use[plan.place.slot] = made;
      table.forget(plan);
      CHECK(table.find(forgotten) == nullptr);
    }
  }
}

TEST_CASE("a plan that is forgotten while it waits for its round is there until that is over") {
  PlanTable table;
  table.open(4);
  ReplayPlan& plan = add(table, "x");
  const int slot = plan.place.slot;
  plan.joined = true;
  table.forget(plan);
  CHECK(table.has_none());
  CHECK(table.size() == 0);
  REQUIRE(table.in_slot(slot) == &plan);
  CHECK(plan.forgotten);
  table.bury(plan);
  CHECK(table.in_slot(slot) == nullptr);
}

TEST_CASE("a plan is as urgent as the most urgent of its members, and as large as all of them") {
  ResponseList responses{response_of("a"), response_of("b"), response_of("c")};
  responses[1].request.priority = 3;
  responses[2].request.priority = -1;
  const std::vector<Fusion> batches{{{0, 1}}, {{2}}};
  PlanTable table;
  table.open(4);
  const ReplayPlan& plan = table.add(responses, pointers_to(batches));
  CHECK(plan.urgency.priority == 3);
  CHECK(plan.urgency.bytes == 48);
  CHECK(plan.members == 3);
  const PlanTable::Where* const where = table.find("c");
  REQUIRE(where != nullptr);
  CHECK((where->batch == 1 && where->index == 0));
}

TEST_CASE("the plans of a group are found once each, the oldest first") {
  PlanTable table;
  table.open(8);
  std::vector<ReplayPlan*> of_group;
  for (const std::string name : {"z", "y", "x"}) {
    const ResponseList responses{response_of(name, "g", 2), response_of(name + "2", "g", 2)};
    const std::vector<Fusion> batches{{{0, 1}}};
    of_group.push_back(&table.add(responses, pointers_to(batches)));
    add(table, name + "3");
  }
  CHECK(table.of_group("g") == of_group);
  CHECK(table.of_group("h").empty());
}

}  // namespace rueda::test::plan_table_test
