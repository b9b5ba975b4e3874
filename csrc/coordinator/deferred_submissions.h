// Submissions whose names are still in use: an operation of the same name is in progress, and the
// next one may be announced to the other ranks only once that has ended.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/submission.h"

namespace rueda {

class DeferredSubmissions {
 public:
  // An operation, or a whole group.
  using Group = std::vector<Submission>;

  [[nodiscard]] bool empty() const { return groups_.empty(); }
  [[nodiscard]] bool contains(const std::string& name) const { return groups_.contains(name); }
  // Queues behind submissions that already wait for `name`.
  void add(const std::string& name, Group submissions) {
    groups_[name].push_back(std::move(submissions));
  }
  // The awaited names for which `is_wanted` returns true.
  [[nodiscard]] std::vector<std::string> names(
      const std::function<bool(const std::string& name)>& is_wanted) const;
  // What waits for the name, in order of arrival.
  [[nodiscard]] std::deque<Group> take(const std::string& name);
  // The first of these; the name must be awaited.
  [[nodiscard]] const Group& first(const std::string& name) const {
    return groups_.at(name).front();
  }
  [[nodiscard]] Group take_first(const std::string& name);
  [[nodiscard]] std::vector<Group> take_all();

 private:
  std::unordered_map<std::string, std::deque<Group>> groups_;  // by awaited name
};

}  // namespace rueda
