// What a rank has submitted under names that it has to wait for: an operation of the name is still
// under way, and only when that is over may the next one be told to the others.
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
  // Behind what waits for `name` already.
  void add(const std::string& name, Group submissions) {
    groups_[name].push_back(std::move(submissions));
  }
  // The names that are waited for and of which `is_wanted` says so.
  [[nodiscard]] std::vector<std::string> names(
      const std::function<bool(const std::string& name)>& is_wanted) const;
  // What waits for the name, in the order in which it came.
  [[nodiscard]] std::deque<Group> take(const std::string& name);
  // The first of that; the name must be waited for.
  [[nodiscard]] const Group& first(const std::string& name) const {
    return groups_.at(name).front();
  }
  [[nodiscard]] Group take_first(const std::string& name);
  [[nodiscard]] std::vector<Group> take_all();

 private:
  std::unordered_map<std::string, std::deque<Group>> groups_;  // by the name that is waited for
};

}  // namespace rueda
