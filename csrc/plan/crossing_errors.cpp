#include "plan/crossing_errors.h"

#include <algorithm>

namespace rueda {

namespace {

// Prefixes keep names and groups apart in one map.
std::string name_key(const std::string& name) {
  return "name " + name;
}
std::string group_key(const std::string& group) {
  return "group " + group;
}

}  // namespace

void CrossingErrors::note_applied(int child, std::uint64_t lists,
                                  const std::vector<int>& children) {
  child_applied_[child] = lists;
  std::erase_if(failed_at_, [&](const auto& failed) {
    return std::all_of(children.begin(), children.end(),
                       [&](int node) { return child_applied_[node] >= failed.second; });
  });
}

void CrossingErrors::note(const Response& error) {
  if (!has_children_) return;
  failed_at_[name_key(error.request.name)] = applied_;
  if (!error.request.group.empty()) failed_at_[group_key(error.request.group)] = applied_;
}

bool CrossingErrors::was_answered(int child, const Announcement& announcement) const {
  if (failed_at_.empty()) return false;
  const auto sent_before = [&](const std::string& key) {
    const auto failed = failed_at_.find(key);
    return failed != failed_at_.end() && child_applied_.at(child) < failed->second;
  };
  if (sent_before(name_key(announcement.variants.front().request.name))) return true;
  return std::all_of(
      announcement.variants.begin(), announcement.variants.end(), [&](const Variant& variant) {
        return !variant.request.group.empty() && sent_before(group_key(variant.request.group));
      });
}

void CrossingErrors::miss(const Response& error) {
  missed_[name_key(error.request.name)] = error.status;
  if (!error.request.group.empty()) missed_[group_key(error.request.group)] = error.status;
}

Status CrossingErrors::take_missed(std::span<const Request> requests) {
  Status missed;
  if (missed_.empty()) return missed;
  for (const Request& request : requests) {
    for (const std::string& key : {name_key(request.name), group_key(request.group)}) {
      if (const auto found = missed_.extract(key)) missed = found.mapped();
    }
  }
  return missed;
}

}  // namespace rueda
