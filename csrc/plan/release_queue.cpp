#include "plan/release_queue.h"

#include <algorithm>
#include <iterator>

#include "core/in_quotes.h"
#include "core/strings.h"
#include "plan/rank_list.h"

namespace rueda {

void ReleaseQueue::add(const std::string& name) {
  const AnnouncedTensor& tensor = tensors_.at(name);
  const Request& request = tensor.request();
  // An error fails the whole group immediately; its pending members need no answer of their own.
  if (request.group.empty() || tensor.groups().size() > 1 || !responses_.verdict(tensor).ok()) {
    ready_.push_back(name);
    return;
  }
  std::vector<std::string>& members = groups_[request.group];
  members.push_back(name);
  if (static_cast<int>(members.size()) < request.group_size) return;
  std::sort(members.begin(), members.end());
  ready_.insert(ready_.end(), members.begin(), members.end());
  groups_.erase(request.group);
}

bool ReleaseQueue::contains(const std::string& name) const {
  return rueda::contains(ready_, name);
}

void ReleaseQueue::drop_answered() {
  std::erase_if(ready_, [this](const std::string& name) { return !tensors_.contains(name); });
}

bool ReleaseQueue::is_enough_to_fuse() const {
  std::size_t bytes = 0;
  for (const std::string& name : ready_) {
    const Request& request = tensors_.at(name).request();
    if (request.error.ok()) bytes += request.bytes();
  }
  return bytes >= static_cast<std::size_t>(std::max<std::int64_t>(0, fusion_threshold_));
}

std::int32_t ReleaseQueue::priority_of(const std::string& name) const {
  return tensors_.at(name).request().priority;
}

std::vector<std::string> ReleaseQueue::take_held() {
  if (!load_.is_busy || is_enough_to_fuse()) return {};
  const auto held =
      std::stable_partition(ready_.begin(), ready_.end(), [this](const std::string& name) {
        const Request& request = tensors_.at(name).request();
        return !load_.holds_back({request.priority, request.error.ok() ? request.bytes() : 0});
      });
  std::vector<std::string> taken(std::make_move_iterator(held),
                                 std::make_move_iterator(ready_.end()));
  ready_.erase(held, ready_.end());
  return taken;
}

// The most urgent first; among equals, the one that has been ready longest. Errors come first: a
// member of a group that was fine when it became ready may have been amended since, and then no
// other member may be executed.
ResponseList ReleaseQueue::release() {
  std::stable_sort(ready_.begin(), ready_.end(),
                   [this](const std::string& left, const std::string& right) {
                     return priority_of(left) > priority_of(right);
                   });
  ResponseList list;
  AnnouncedTensor::Groups failed;
  for (const std::string& name : ready_) {
    const AnnouncedTensor& tensor = tensors_.at(name);
    if (responses_.verdict(tensor).ok()) continue;
    const AnnouncedTensor::Groups groups = tensor.groups();
    if (groups.size() == 1 && failed.contains(*groups.begin())) continue;
    ResponseBuilder::add_error(list, responses_.respond(tensor), groups);
    failed.insert(groups.begin(), groups.end());
    failed.erase("");
  }
  for (const std::string& name : ready_) {
    const AnnouncedTensor& tensor = tensors_.at(name);
    if (failed.contains(tensor.request().group)) continue;
    if (responses_.verdict(tensor).ok()) list.push_back(responses_.respond(tensor));
  }
  ready_.clear();
  return list;
}

ResponseList ReleaseQueue::fail_unfinished_groups() const {
  ResponseList list;
  for (const auto& [group, members] : groups_) {
    Response response = responses_.respond(tensors_.at(members.front()));
    response.status = Status(ErrorCode::mismatch,
                             str(naming_.quoted(response.request.name), ": its group ",
                                 in_quotes(group), " is incomplete, and all ranks have joined"));
    response.kind = ResponseKind::error;
    ResponseBuilder::add_error(list, response, {group});
  }
  return list;
}

}  // namespace rueda
