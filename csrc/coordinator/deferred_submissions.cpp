#include "coordinator/deferred_submissions.h"

#include <iterator>
#include <utility>

namespace rueda {

std::vector<std::string> DeferredSubmissions::names(
    const std::function<bool(const std::string& name)>& is_wanted) const {
  std::vector<std::string> wanted;
  for (const auto& [name, groups] : groups_) {
    if (is_wanted(name)) wanted.push_back(name);
  }
  return wanted;
}

std::deque<DeferredSubmissions::Group> DeferredSubmissions::take(const std::string& name) {
  auto node = groups_.extract(name);
  return node.empty() ? std::deque<Group>() : std::move(node.mapped());
}

DeferredSubmissions::Group DeferredSubmissions::take_first(const std::string& name) {
  const auto waiting = groups_.find(name);
  Group first = std::move(waiting->second.front());
  waiting->second.pop_front();
  if (waiting->second.empty()) groups_.erase(waiting);
  return first;
}

std::vector<DeferredSubmissions::Group> DeferredSubmissions::take_all() {
  std::vector<Group> all;
  for (auto& [name, groups] : std::exchange(groups_, {})) {
    std::move(groups.begin(), groups.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace rueda
