#include "plan/survivor_choice.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

namespace rueda {

namespace {

// For each member that has any: the other ends of its broken links.
using Ends = std::map<int, std::set<int>>;

Ends ends_of(const std::vector<int>& members, const std::set<BrokenLink>& broken) {
  const auto is_member = [&](int number) {
    return std::binary_search(members.begin(), members.end(), number);
  };
  Ends ends;
  for (const BrokenLink& link : broken) {
    if (!is_member(link.observer) || !is_member(link.member)) continue;
    ends[link.observer].insert(link.member);
    ends[link.member].insert(link.observer);
  }
  return ends;
}

int worst_of(const Ends& ends, const std::set<BrokenLink>& broken) {
  const auto rank_of = [&](const Ends::value_type& member) {
    const auto unanswered =
        std::count_if(member.second.begin(), member.second.end(),
                      [&](int other) { return !broken.contains({member.first, other}); });
    return std::tuple(member.second.size(), unanswered, member.first);
  };
  return std::max_element(
             ends.begin(), ends.end(),
             [&](const auto& left, const auto& right) { return rank_of(left) < rank_of(right); })
      ->first;
}

}  // namespace

std::vector<int> choose_survivors(const std::vector<int>& members,
                                  const std::set<BrokenLink>& broken) {
  const Ends all = ends_of(members, broken);
  Ends ends = all;
  std::set<int> lost;
  while (!ends.empty()) {
    const int worst = worst_of(ends, broken);
    lost.insert(worst);
    for (const int other : ends.at(worst)) {
      const auto found = ends.find(other);
      found->second.erase(worst);
      if (found->second.empty()) ends.erase(found);
    }
    ends.erase(worst);
  }
  // Takes back those whose broken links all lead to members that were removed, too.
  for (auto member = lost.begin(); member != lost.end();) {
    const std::set<int>& others = all.at(*member);
    const bool joins = std::none_of(others.begin(), others.end(),
                                    [&](int other) { return !lost.contains(other); });
    member = joins ? lost.erase(member) : std::next(member);
  }
  std::vector<int> survivors;
  std::set_difference(members.begin(), members.end(), lost.begin(), lost.end(),
                      std::back_inserter(survivors));
  return survivors;
}

bool has_quorum(const std::vector<int>& survivors, const std::vector<int>& members,
                const std::vector<int>& ended) {
  std::vector<int> counted;
  std::set_difference(members.begin(), members.end(), ended.begin(), ended.end(),
                      std::back_inserter(counted));
  if (counted.empty()) return true;
  std::vector<int> present;
  std::set_intersection(counted.begin(), counted.end(), survivors.begin(), survivors.end(),
                        std::back_inserter(present));
  if (present.empty()) return false;
  const std::size_t others = counted.size() - present.size();
  return present.size() > others ||
         (present.size() == others && present.front() == counted.front());
}

}  // namespace rueda
