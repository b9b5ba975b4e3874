#include "plan/announced_tensors.h"

#include <algorithm>
#include <iterator>

#include "plan/rank_list.h"

namespace rueda {

AnnouncedTensor::Asked& AnnouncedTensor::variant_of(const Request& request) {
  const auto same = [&](const Asked& variant) {
    return variant.request.error.code() == request.error.code() &&
           variant.request.error.message() == request.error.message() &&
           variant.request.error.details() == request.error.details() &&
           !compare(variant.request, request);
  };
  const auto variant = std::find_if(variants.begin(), variants.end(), same);
  if (variant != variants.end()) {
    std::size_t& bytes = variant->request.output_bytes;
    if (bytes != request.output_bytes) bytes = 0;
    return *variant;
  }
  variants.push_back({request, {}, {}});
  return variants.back();
}

AnnouncedTensor::Groups AnnouncedTensor::groups() const {
  Groups groups;
  for (const Asked& variant : variants) groups.insert(variant.request.group);
  for (const auto& [child, announcement] : partial_children) {
    for (const Variant& variant : announcement.variants) groups.insert(variant.request.group);
  }
  return groups;
}

AnnouncedTensor* AnnouncedTensors::find(const std::string& name) {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool AnnouncedTensors::fail(const std::string& name, const std::string& group) {
  bool took_part = false;
  if (const auto tensor = tensors_.find(name); tensor != tensors_.end()) {
    took_part = tensor->second.self_ready;
    tensors_.erase(tensor);
  }
  if (group.empty()) return took_part;
  for (auto tensor = tensors_.begin(); tensor != tensors_.end();) {
    const AnnouncedTensor::Groups groups = tensor->second.groups();
    if (!groups.contains(group)) {
      ++tensor;
      continue;
    }
    for (const AnnouncedTensor::Asked& variant : tensor->second.variants) {
      const bool own = rueda::contains(variant.ranks, tree_.rank());
      took_part = took_part || (own && variant.request.group == group);
    }
    // If ranks disagree about a name's group, those outside this one still wait for their answer.
    tensor = groups.size() == 1 ? tensors_.erase(tensor) : std::next(tensor);
  }
  return took_part;
}

void AnnouncedTensors::update_complete(Tensors::iterator tensor) {
  AnnouncedTensor& state = tensor->second;
  if (state.complete || !(state.self_ready || joined_.has_self())) return;
  for (const int child : subtrees_.children()) {
    if (!state.complete_children.contains(child) && !joined_.has_subtree(child)) return;
  }
  state.complete = true;
  completed_.push_back(tensor->first);
}

void AnnouncedTensors::update_complete() {
  for (auto tensor = tensors_.begin(); tensor != tensors_.end(); ++tensor) update_complete(tensor);
}

bool AnnouncedTensors::is_just_completed(const std::string& name) const {
  return rueda::contains(completed_, name);
}

void AnnouncedTensors::drop_answered_completions() {
  std::erase_if(completed_, [this](const std::string& name) { return !contains(name); });
}

std::vector<int> AnnouncedTensors::ranks_of(const AnnouncedTensor& tensor,
                                            const AnnouncedTensor::Asked& variant) const {
  std::vector<int> ranks = variant.ranks;
  for (const int child : variant.children) {
    const std::vector<int>& below = subtrees_.below(child);
    std::set_difference(below.begin(), below.end(), tensor.absent.begin(), tensor.absent.end(),
                        std::back_inserter(ranks));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int> AnnouncedTensors::ready_ranks(const AnnouncedTensor& tensor) const {
  std::vector<int> ranks;
  for (const AnnouncedTensor::Asked& variant : tensor.variants) {
    add_ranks(ranks, ranks_of(tensor, variant));
  }
  for (const auto& [child, announcement] : tensor.partial_children) {
    for (const Variant& variant : announcement.variants) add_ranks(ranks, variant.ranks);
  }
  return ranks;
}

std::vector<int> AnnouncedTensors::ready_ranks(const AnnouncedTensor& tensor, int child) const {
  std::vector<int> ranks;
  for (const int rank : subtrees_.below(child)) {
    if (!rueda::contains(tensor.absent, rank) && !joined_.has_rank(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> AnnouncedTensors::absent_ranks(const AnnouncedTensor& tensor) const {
  std::vector<int> absent = tensor.absent;
  if (joined_.ranks().empty()) return absent;
  if (joined_.has_self() && !tensor.self_ready) add_ranks(absent, {tree_.rank()});
  for (const int child : subtrees_.children()) {
    if (!tensor.complete_children.contains(child)) add_ranks(absent, subtrees_.below(child));
  }
  return absent;
}

Announcement AnnouncedTensors::announce(const AnnouncedTensor& tensor, bool partial) const {
  Announcement announcement;
  announcement.partial = partial;
  announcement.first_extents = tensor.first_extents;
  for (const AnnouncedTensor::Asked& variant : tensor.variants) {
    const bool whole = !partial && tensor.variants.size() == 1;
    announcement.variants.push_back(
        {variant.request, whole ? std::vector<int>() : ranks_of(tensor, variant)});
  }
  if (!partial) {
    announcement.absent = absent_ranks(tensor);
    return announcement;
  }
  for (const auto& [child, below] : tensor.partial_children) {
    announcement.variants.insert(announcement.variants.end(), below.variants.begin(),
                                 below.variants.end());
  }
  return announcement;
}

}  // namespace rueda
