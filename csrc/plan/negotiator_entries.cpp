// What is known of a name that somebody in the subtree has submitted.
#include <algorithm>
#include <iterator>

#include "plan/negotiator.h"
#include "plan/rank_list.h"

namespace rueda {

Negotiator::Entries::iterator Negotiator::entry_for(const std::string& name, Time since) {
  const auto [entry, inserted] = pending_.try_emplace(name);
  Entry& state = entry->second;
  if (inserted || since < state.since) {
    state.since = since;
    // What has been reported once keeps its rhythm, however its age is estimated anew.
    // Nor is a report brought forward that waits for answers.
    if (!state.reported && !state.inquiring) state.next_report = first_report(since);
    next_check_ = std::min(next_check_, state.next_report);
  }
  return entry;
}

Negotiator::Asked& Negotiator::variant_of(Entry& entry, const Request& request) {
  const auto same = [&](const Asked& variant) {
    return variant.request.error.code() == request.error.code() &&
           variant.request.error.message() == request.error.message() &&
           variant.request.error.details() == request.error.details() &&
           !compare(variant.request, request);
  };
  const auto variant = std::find_if(entry.variants.begin(), entry.variants.end(), same);
  if (variant != entry.variants.end()) {
    std::size_t& bytes = variant->request.output_bytes;
    if (bytes != request.output_bytes) bytes = 0;
    return *variant;
  }
  entry.variants.push_back({request, {}, {}});
  return entry.variants.back();
}

Negotiator::Groups Negotiator::groups_of(const Entry& entry) {
  Groups groups;
  for (const Asked& variant : entry.variants) groups.insert(variant.request.group);
  for (const auto& [child, announcement] : entry.partial_children) {
    for (const Variant& variant : announcement.variants) groups.insert(variant.request.group);
  }
  return groups;
}

bool Negotiator::has_joined(int child) const {
  const auto below = joined_below_.find(child);
  if (below == joined_below_.end() || below->second < subtrees_.at(child).size()) return false;
  const auto unresolved = unresolved_.find(child);
  return unresolved == unresolved_.end() || unresolved->second == 0;
}

void Negotiator::update_complete(Entries::iterator entry) {
  Entry& state = entry->second;
  if (state.complete || !(state.self_ready || self_joined_)) return;
  for (const int child : children_) {
    if (!state.complete_children.contains(child) && !has_joined(child)) return;
  }
  state.complete = true;
  newly_complete_.push_back(entry->first);
}

void Negotiator::update_complete() {
  for (auto entry = pending_.begin(); entry != pending_.end(); ++entry) update_complete(entry);
}

std::vector<int> Negotiator::ranks_of(const Entry& entry, const Asked& variant) const {
  std::vector<int> ranks = variant.ranks;
  for (const int child : variant.children) {
    const std::vector<int>& below = subtrees_.at(child);
    std::set_difference(below.begin(), below.end(), entry.absent.begin(), entry.absent.end(),
                        std::back_inserter(ranks));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<int> Negotiator::ready_ranks(const Entry& entry) const {
  std::vector<int> ranks;
  for (const Asked& variant : entry.variants) add_ranks(ranks, ranks_of(entry, variant));
  for (const auto& [child, announcement] : entry.partial_children) {
    for (const Variant& variant : announcement.variants) add_ranks(ranks, variant.ranks);
  }
  return ranks;
}

std::vector<int> Negotiator::absent_ranks(const Entry& entry) const {
  std::vector<int> absent = entry.absent;
  if (joined_.empty()) return absent;
  if (self_joined_ && !entry.self_ready) add_ranks(absent, {tree_.rank()});
  for (const int child : children_) {
    if (!entry.complete_children.contains(child)) add_ranks(absent, subtrees_.at(child));
  }
  return absent;
}

Announcement Negotiator::announce(const Entry& entry, bool partial) const {
  Announcement announcement;
  announcement.partial = partial;
  announcement.first_extents = entry.first_extents;
  for (const Asked& variant : entry.variants) {
    const bool whole = !partial && entry.variants.size() == 1;
    announcement.variants.push_back(
        {variant.request, whole ? std::vector<int>() : ranks_of(entry, variant)});
  }
  if (!partial) {
    announcement.absent = absent_ranks(entry);
    return announcement;
  }
  for (const auto& [child, below] : entry.partial_children) {
    announcement.variants.insert(announcement.variants.end(), below.variants.begin(),
                                 below.variants.end());
  }
  return announcement;
}

const ResponseCache::Entry* Negotiator::cached(const Entry& entry) const {
  if (entry.variants.size() != 1 || !joined_.empty()) return nullptr;
  const Request& request = entry.variants.front().request;
  if (!request.error.ok()) return nullptr;
  const ResponseCache::Entry* known = cache_.find(request.name);
  if (known == nullptr || compare(known->request, request) ||
      !covers_output(known->request, request)) {
    return nullptr;
  }
  for (const auto& [rank, rows] : entry.first_extents) {
    if (known->first_extents[static_cast<std::size_t>(rank)] != rows) return nullptr;
  }
  return known;
}

}  // namespace rueda
