#include "plan/negotiator.h"

#include <algorithm>

#include "core/strings.h"
#include "plan/rank_list.h"

namespace rueda {

namespace {

// Names and groups in one map, whatever they are called.
std::string name_key(const std::string& name) {
  return "name " + name;
}
std::string group_key(const std::string& group) {
  return "group " + group;
}

}  // namespace

Negotiator::Negotiator(NegotiatorOptions options)
    : options_(std::move(options)),
      tree_(options_.rank, static_cast<int>(options_.members.size()), options_.fanout),
      children_(tree_.children()),
      cache_(options_.cache_capacity) {
  for (const int child : children_) subtrees_[child] = tree_.subtree(child);
}

// --- What this rank wants

Status Negotiator::submit(Request request, Time now) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return submit_group(std::move(one), now);
}

Status Negotiator::submit_group(std::vector<Request> requests, Time now) {
  if (!closed_.ok()) return closed_;
  const Request& first = requests.front();
  if (self_joined_) {
    return {ErrorCode::invalid_argument,
            str(quoted(first.name), " was submitted after join(): wait for the join first")};
  }
  Status missed;
  for (const Request& request : requests) {
    for (const std::string& key : {name_key(request.name), group_key(request.group)}) {
      if (const auto found = missed_.extract(key)) missed = found.mapped();
    }
  }
  if (!missed.ok()) return missed;
  for (Request& request : requests) {
    const auto entry = entry_for(request.name, now);
    // Still waiting for an answer that the failure of a group took from this rank: it is that of
    // this one, too.
    if (entry->second.self_ready) continue;
    entry->second.self_ready = true;
    // Each pair of ranks settles its own sizes.
    if (request.collective == Collective::alltoall) request.output_bytes = 0;
    if (is_watched()) options_.on_ready(request, {{tree_.rank()}}, now);
    report_soon(entry->second, now);
    if (request.collective == Collective::allgather && !request.shape.empty()) {
      entry->second.first_extents.emplace_back(tree_.rank(), request.shape.front());
    }
    add_ranks(variant_of(entry->second, request).ranks, {tree_.rank()});
    update_complete(entry);
  }
  return {};
}

void Negotiator::amend(const std::string& name, const Status& error) {
  const auto entry = pending_.find(name);
  if (entry == pending_.end() || !entry->second.self_ready) return;
  const auto own =
      std::find_if(entry->second.variants.begin(), entry->second.variants.end(),
                   [&](const Asked& variant) { return contains(variant.ranks, tree_.rank()); });
  Announcement amendment;
  amendment.variants.push_back({own->request, {tree_.rank()}});
  amendment.variants.front().request.error = error;
  amendment.amends = true;
  merge_amendment(tree_.rank(), amendment);
}

void Negotiator::join() {
  self_joined_ = true;
  missed_.clear();  // it will not come for what it has missed
  joined_.push_back(tree_.rank());
  up_.joined.push_back(tree_.rank());
  update_complete();
}

void Negotiator::leave() {
  if (!closed_.ok() || std::exchange(has_left_, true)) return;
  leaving_.push_back(tree_.rank());
  up_.leaving.push_back(tree_.rank());
}

// --- What the children say

void Negotiator::receive(int peer, std::span<const std::byte> message, Time now) {
  Reader reader(message);
  const auto kind = static_cast<MessageKind>(reader.byte());
  const auto malformed = [&] {
    break_off(str("a malformed message arrived from ", describe({peer})));
  };
  if (contains(children_, peer)) {
    auto up = decode_up(reader, tree_.size());
    if (kind != MessageKind::up || !up) return malformed();
    receive_up(peer, std::move(*up), now);
  } else if (!tree_.is_root() && peer == tree_.parent()) {
    if (kind == MessageKind::responses) return receive_responses(reader, message);
    const auto ids = decode_unknown_ids(reader);
    if (kind != MessageKind::unknown_ids || !ids) return malformed();
    resend(*ids);
  }
}

void Negotiator::receive_up(int child, UpMessage message, Time now) {
  if (!closed_.ok()) return;
  if (message.resolved > unresolved_[child] || !note_joined(child, message.joined)) {
    return break_off(str("malformed message from ", describe({child})));
  }
  child_applied_[child] = message.applied;
  std::erase_if(failed_at_, [&](const auto& failed) {
    return std::all_of(children_.begin(), children_.end(),
                       [&](int node) { return child_applied_[node] >= failed.second; });
  });
  merge_cached(child, message.cached, now);
  for (Announcement& announcement : message.announcements) {
    merge(child, std::move(announcement), now);
  }
  unresolved_[child] -= message.resolved;
  if (!message.joined.empty() || message.resolved > 0) update_complete();
  leaving_.insert(leaving_.end(), message.leaving.begin(), message.leaving.end());
  up_.leaving.insert(up_.leaving.end(), message.leaving.begin(), message.leaving.end());
}

// What a child submitted before it joined is merged before anything is completed by its absence.
bool Negotiator::note_joined(int child, const std::vector<int>& ranks) {
  const std::vector<int>& below = subtrees_.at(child);
  for (const int rank : ranks) {
    if (!std::binary_search(below.begin(), below.end(), rank)) return false;
  }
  if (ranks.empty()) return true;
  if (joined_below_[child] + ranks.size() > below.size()) return false;
  joined_below_[child] += ranks.size();
  joined_.insert(joined_.end(), ranks.begin(), ranks.end());
  up_.joined.insert(up_.joined.end(), ranks.begin(), ranks.end());
  return true;
}

void Negotiator::merge_cached(int child, const std::vector<std::uint64_t>& ids, Time now) {
  std::vector<std::uint64_t> unknown;
  for (const std::uint64_t id : ids) {
    const ResponseCache::Entry* known = cache_.find(id);
    if (known == nullptr) {
      unknown.push_back(id);
      continue;
    }
    Announcement announcement;
    announcement.variants.push_back({known->request, {}});
    if (!known->first_extents.empty()) {
      for (const int rank : subtrees_.at(child)) {
        announcement.first_extents.emplace_back(
            rank, known->first_extents[static_cast<std::size_t>(rank)]);
      }
    }
    merge(child, std::move(announcement), now);
  }
  if (unknown.empty()) return;
  unresolved_[child] += unknown.size();
  outgoing_.push_back({child, encode_unknown_ids(unknown)});
}

void Negotiator::merge(int child, Announcement announcement, Time now) {
  if (was_answered(child, announcement)) return;
  if (announcement.amends) return merge_amendment(child, announcement);
  const Time since = announcement.partial ? now - seconds(announcement.age) : now;
  const auto entry = entry_for(announcement.variants.front().request.name, since);
  Entry& state = entry->second;
  if (state.complete_children.contains(child)) return;
  if (announcement.partial) {
    const std::size_t known = ready_ranks(state).size();
    state.partial_children[child] = std::move(announcement);
    if (ready_ranks(state).size() > known) report_soon(state, now);
    return;
  }
  report_soon(state, now);
  state.complete_children.insert(child);
  state.partial_children.erase(child);
  for (const Variant& variant : announcement.variants) {
    Asked& asked = variant_of(state, variant.request);
    add_ranks(asked.ranks, variant.ranks);
    if (variant.ranks.empty()) asked.children.push_back(child);
  }
  add_ranks(state.absent, announcement.absent);
  state.first_extents.insert(state.first_extents.end(), announcement.first_extents.begin(),
                             announcement.first_extents.end());
  if (is_watched()) tell_ready(state, child, now);
  update_complete(entry);
}

void Negotiator::tell_ready(const Entry& entry, int child, Time now) const {
  std::vector<int> ranks;
  for (const int rank : subtrees_.at(child)) {
    if (!contains(entry.absent, rank) && !contains(joined_, rank)) ranks.push_back(rank);
  }
  if (!ranks.empty()) options_.on_ready(entry.variants.front().request, ranks, now);
}

bool Negotiator::was_answered(int child, const Announcement& announcement) const {
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

void Negotiator::merge_amendment(int child, const Announcement& announcement) {
  const Variant& amendment = announcement.variants.front();
  const auto found = pending_.find(amendment.request.name);
  if (found == pending_.end()) return;
  Entry& entry = found->second;
  const bool counted =
      child == tree_.rank() ? entry.self_ready : entry.complete_children.contains(child);
  if (!counted) return;
  add_ranks(variant_of(entry, amendment.request).ranks, amendment.ranks);
  if (!entry.complete || contains(newly_complete_, found->first)) return;
  if (!tree_.is_root()) {
    up_.announcements.push_back(announcement);
  } else if (!contains(ready_, found->first)) {
    newly_complete_.push_back(found->first);  // its group is incomplete, and has failed now
  }
}

// --- What the parent says

void Negotiator::receive_responses(Reader& reader, std::span<const std::byte> message) {
  for (const int child : children_) {
    outgoing_.push_back({child, std::vector<std::byte>(message.begin(), message.end())});
  }
  if (!closed_.ok()) return;
  auto responses = decode_responses(reader, cache_, tree_.size());
  if (!responses) return break_off("a malformed response arrived from the negotiation");
  apply(std::move(*responses));
}

void Negotiator::resend(const std::vector<std::uint64_t>& ids) {
  if (!closed_.ok()) return;
  up_.resolved += ids.size();
  for (auto& [name, entry] : pending_) {
    if (!entry.announced_id || !contains(ids, *entry.announced_id)) continue;
    entry.announced_id.reset();
    up_.announcements.push_back(announce(entry, false));
  }
}

void Negotiator::break_off(const std::string& why) {
  if (!closed_.ok()) return;
  Response broken;
  broken.kind = ResponseKind::left;
  broken.rank = tree_.rank();
  broken.status = Status(ErrorCode::internal, str(describe({tree_.rank()}), ": ", why),
                         world_rank(tree_.rank()));
  for (const int child : children_) outgoing_.push_back({child, encode({broken}, cache_)});
  if (!tree_.is_root()) {
    UpMessage farewell;
    farewell.applied = applied_;
    farewell.leaving.push_back(tree_.rank());
    outgoing_.push_back({tree_.parent(), encode(farewell)});
  }
  apply({broken});
}

void Negotiator::apply(ResponseList responses) {
  ++applied_;
  std::set<std::string> took_part;
  for (const Response& response : responses) {
    const std::string& name = response.request.name;
    switch (response.kind) {
      case ResponseKind::execute:
        cache_.apply(response);
        pending_.erase(name);
        break;
      case ResponseKind::error:
        if (apply_error(response)) took_part.insert(name);
        // An error may come once for each of several groups: who has had it has not missed it.
        if (response.status.code() == ErrorCode::stalled && !self_joined_ &&
            !took_part.contains(name)) {
          missed_[name_key(name)] = response.status;
          if (!response.request.group.empty()) {
            missed_[group_key(response.request.group)] = response.status;
          }
        }
        break;
      case ResponseKind::warning: break;
      case ResponseKind::joined:
        self_joined_ = false;
        joined_.clear();
        joined_below_.clear();
        break;
      case ResponseKind::left: close(response.status); break;
    }
  }
  // What waits to be sent or released must not outlive its entry: under the same name, the next
  // round would take it for its own.
  const auto answered = [&](const std::string& name) { return !pending_.contains(name); };
  std::erase_if(newly_complete_, answered);
  std::erase_if(ready_, answered);
  std::erase_if(up_.announcements, [&](const Announcement& announcement) {
    return answered(announcement.variants.front().request.name);
  });
  agreed_.push_back(std::move(responses));
}

bool Negotiator::apply_error(const Response& response) {
  const std::string& group = response.request.group;
  bool took_part = false;
  if (const auto entry = pending_.find(response.request.name); entry != pending_.end()) {
    took_part = entry->second.self_ready;
    pending_.erase(entry);
  }
  failed_at_[name_key(response.request.name)] = applied_;
  if (group.empty()) return took_part;
  failed_at_[group_key(group)] = applied_;
  groups_.erase(group);
  for (auto entry = pending_.begin(); entry != pending_.end();) {
    const Groups groups = groups_of(entry->second);
    if (!groups.contains(group)) {
      ++entry;
      continue;
    }
    for (const Asked& variant : entry->second.variants) {
      const bool own = contains(variant.ranks, tree_.rank());
      took_part = took_part || (own && variant.request.group == group);
    }
    // Where ranks disagree about the group of a name, those outside of this one still wait for
    // their answer.
    entry = groups.size() == 1 ? pending_.erase(entry) : std::next(entry);
  }
  return took_part;
}

void Negotiator::close(const Status& reason) {
  closed_ = reason;
  pending_.clear();
  up_ = {};
  groups_.clear();
}

// --- Flush

void Negotiator::flush(Time now) {
  if (!closed_.ok()) return;
  check_stalls(now);
  if (tree_.is_root()) {
    flush_root();
  } else {
    flush_up();
  }
}

void Negotiator::flush_up() {
  for (const std::string& name : newly_complete_) {
    Entry& entry = pending_.at(name);
    if (const ResponseCache::Entry* known = cached(entry)) {
      entry.announced_id = known->id;
      up_.cached.push_back(known->id);
    } else {
      up_.announcements.push_back(announce(entry, false));
    }
  }
  newly_complete_.clear();
  if (up_.empty()) return;
  up_.applied = applied_;
  outgoing_.push_back({tree_.parent(), encode(std::exchange(up_, {}))});
}

// --- Words

int Negotiator::world_rank(int set_rank) const {
  return options_.members[static_cast<std::size_t>(set_rank)];
}

std::string Negotiator::describe(const std::vector<int>& set_ranks) const {
  std::vector<int> world_ranks;
  for (const int rank : set_ranks) world_ranks.push_back(world_rank(rank));
  return describe_ranks(world_ranks);
}

std::string Negotiator::quoted(const std::string& name) const {
  return options_.set_name.empty() ? str("'", name, "'")
                                   : str("'", name, "' (", options_.set_name, ")");
}

}  // namespace rueda
