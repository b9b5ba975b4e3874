#include "plan/negotiator.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "core/strings.h"

namespace rueda {

namespace {

std::string group_key(const std::string& group) { return "group " + group; }

template <class Container, class Value>
bool contains(const Container& container, const Value& value) {
  return std::find(container.begin(), container.end(), value) != container.end();
}

}  // namespace

Negotiator::Negotiator(NegotiatorOptions options)
    : options_(std::move(options)),
      tree_(options_.rank, static_cast<int>(options_.members.size()), options_.fanout),
      children_(tree_.children()),
      cache_(options_.cache_capacity) {
  for (const int child : children_) subtrees_[child] = tree_.subtree(child);
}

// --- What this rank wants -------------------------------------------------------------------------

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
  for (const std::string& key :
       {first.name, first.group.empty() ? first.name : group_key(first.group)}) {
    if (const auto missed = missed_.extract(key)) return missed.mapped();
  }
  for (Request& request : requests) {
    const auto entry = entry_for(request.name, now);
    assert(!entry->second.self_ready);
    entry->second.self_ready = true;
    if (request.collective == Collective::allgather && !request.shape.empty()) {
      entry->second.first_extents[tree_.rank()] = request.shape.front();
    }
    add_variant(entry->second, request, {tree_.rank()});
    update_complete(entry);
  }
  return {};
}

void Negotiator::amend(const std::string& name, const Status& error) {
  Announcement amendment;
  Request request;
  request.name = name;
  request.error = error;
  amendment.variants.push_back({request, {tree_.rank()}});
  amendment.amends = true;
  merge_amendment(tree_.rank(), amendment);
}

void Negotiator::join() {
  self_joined_ = true;
  joined_.push_back(tree_.rank());
  up_.joined.push_back(tree_.rank());
  for (auto entry = pending_.begin(); entry != pending_.end(); ++entry) update_complete(entry);
}

void Negotiator::leave() {
  if (!closed_.ok()) return;
  leaving_.push_back(tree_.rank());
  up_.leaving.push_back(tree_.rank());
}

// --- Entries --------------------------------------------------------------------------------------

Negotiator::Entries::iterator Negotiator::entry_for(const std::string& name, Time since) {
  const auto [entry, inserted] = pending_.try_emplace(name);
  if (inserted || since < entry->second.since) {
    entry->second.since = since;
    entry->second.next_report =
        since + (tree_.is_root() ? 2 * report_interval() : report_interval());
  }
  return entry;
}

void Negotiator::add_variant(Entry& entry, const Request& request, const std::vector<int>& ranks) {
  const auto same = [&](const Variant& variant) {
    return variant.request.error.code() == request.error.code() &&
           variant.request.error.message() == request.error.message() &&
           !compare(variant.request, request);
  };
  auto variant = std::find_if(entry.variants.begin(), entry.variants.end(), same);
  if (variant == entry.variants.end()) {
    variant = entry.variants.insert(entry.variants.end(), {request, {}});
  }
  variant->ranks.insert(variant->ranks.end(), ranks.begin(), ranks.end());
  std::sort(variant->ranks.begin(), variant->ranks.end());
}

bool Negotiator::has_joined(int node) const {
  if (node == tree_.rank()) return self_joined_;
  const std::vector<int>& ranks = subtrees_.at(node);
  return std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return contains(joined_, rank); });
}

void Negotiator::update_complete(Entries::iterator entry) {
  Entry& state = entry->second;
  if (state.complete || !(state.self_ready || self_joined_)) return;
  for (const int child : children_) {
    if (!state.complete_children.contains(child) && !(!joined_.empty() && has_joined(child))) return;
  }
  state.complete = true;
  newly_complete_.push_back(entry->first);
}

std::vector<int> Negotiator::ready_ranks(const Entry& entry) const {
  std::set<int> ranks;
  const auto add = [&](const std::vector<Variant>& variants) {
    for (const Variant& variant : variants) ranks.insert(variant.ranks.begin(), variant.ranks.end());
  };
  add(entry.variants);
  for (const auto& [child, announcement] : entry.partial_children) add(announcement.variants);
  return {ranks.begin(), ranks.end()};
}

std::vector<int> Negotiator::absent_ranks(const Entry& entry) const {
  std::vector<int> absent;
  if (joined_.empty()) return absent;
  const std::vector<int> ready = ready_ranks(entry);
  for (const int rank : joined_) {
    if (!std::binary_search(ready.begin(), ready.end(), rank)) absent.push_back(rank);
  }
  std::sort(absent.begin(), absent.end());
  return absent;
}

// --- What the children say ------------------------------------------------------------------------

void Negotiator::receive(int peer, std::span<const std::byte> message, Time now) {
  Reader reader(message);
  const auto kind = static_cast<MessageKind>(reader.byte());
  if (kind == MessageKind::up && contains(children_, peer)) {
    if (auto up = decode_up(reader)) receive_up(peer, std::move(*up), now);
  } else if (kind == MessageKind::responses && !tree_.is_root() && peer == tree_.parent()) {
    receive_responses(reader, message);
  } else if (kind == MessageKind::unknown_ids && !tree_.is_root() && peer == tree_.parent()) {
    if (const auto ids = decode_unknown_ids(reader)) resend(*ids);
  }
}

void Negotiator::receive_up(int child, UpMessage message, Time now) {
  if (!closed_.ok()) return;
  child_applied_[child] = message.applied;
  std::erase_if(failed_at_, [&](const auto& failed) {
    return std::all_of(children_.begin(), children_.end(),
                       [&](int node) { return child_applied_[node] >= failed.second; });
  });

  std::vector<std::uint64_t> unknown;
  for (const std::uint64_t id : message.cached) {
    const ResponseCache::Entry* known = cache_.find(id);
    if (known == nullptr) {
      unknown.push_back(id);
      continue;
    }
    Announcement announcement;
    announcement.variants.push_back({known->request, {}});
    if (!known->first_extents.empty()) {
      for (const int rank : subtrees_.at(child)) {
        announcement.first_extents.emplace_back(rank, known->first_extents[rank]);
      }
    }
    merge(child, std::move(announcement), now);
  }
  if (!unknown.empty()) outgoing_.push_back({child, encode_unknown_ids(unknown)});

  for (Announcement& announcement : message.announcements) {
    merge(child, std::move(announcement), now);
  }
  for (const int rank : message.joined) {
    joined_.push_back(rank);
    up_.joined.push_back(rank);
  }
  if (!message.joined.empty()) {
    for (auto entry = pending_.begin(); entry != pending_.end(); ++entry) update_complete(entry);
  }
  for (const int rank : message.leaving) {
    leaving_.push_back(rank);
    up_.leaving.push_back(rank);
  }
}

void Negotiator::merge(int child, Announcement announcement, Time now) {
  const std::string name = announcement.variants.front().request.name;
  if (was_answered(child, announcement.variants.front().request)) return;
  if (announcement.amends) return merge_amendment(child, announcement);
  const Time since = announcement.partial ? now - seconds(announcement.age) : now;
  const auto entry = entry_for(name, since);
  if (announcement.partial) {
    entry->second.partial_children[child] = std::move(announcement);
    return;
  }
  if (!entry->second.complete_children.insert(child).second) return;
  entry->second.partial_children.erase(child);
  if (announcement.variants.size() == 1 && announcement.variants.front().ranks.empty()) {
    for (const int rank : subtrees_.at(child)) {
      if (!contains(announcement.absent, rank)) {
        announcement.variants.front().ranks.push_back(rank);
      }
    }
  }
  for (const Variant& variant : announcement.variants) {
    add_variant(entry->second, variant.request, variant.ranks);
  }
  for (const auto& [rank, rows] : announcement.first_extents) {
    entry->second.first_extents[rank] = rows;
  }
  update_complete(entry);
}

bool Negotiator::was_answered(int child, const Request& request) const {
  const auto sent_before = [&](const std::string& key) {
    const auto failed = failed_at_.find(key);
    return failed != failed_at_.end() && child_applied_.at(child) < failed->second;
  };
  return sent_before(request.name) ||
         (!request.group.empty() && sent_before(group_key(request.group)));
}

void Negotiator::merge_amendment(int child, const Announcement& announcement) {
  const Variant& amendment = announcement.variants.front();
  const auto entry = pending_.find(amendment.request.name);
  if (entry == pending_.end()) return;
  const bool counted = child == tree_.rank() ? entry->second.self_ready
                                             : entry->second.complete_children.contains(child);
  if (!counted) return;
  add_variant(entry->second, amendment.request, amendment.ranks);
  const bool announced = entry->second.complete && !contains(newly_complete_, entry->first);
  if (announced && !tree_.is_root()) up_.announcements.push_back(announcement);
}

// --- What the parent says -------------------------------------------------------------------------

void Negotiator::receive_responses(Reader& reader, std::span<const std::byte> message) {
  for (const int child : children_) {
    outgoing_.push_back({child, std::vector<std::byte>(message.begin(), message.end())});
  }
  if (!closed_.ok()) return;
  if (auto responses = decode_responses(reader, cache_)) {
    apply(std::move(*responses));
  } else {
    closed_ = Status(ErrorCode::internal, "a malformed response arrived from the negotiation");
    Response broken;
    broken.kind = ResponseKind::left;
    broken.status = closed_;
    agreed_.push_back({broken});
  }
}

void Negotiator::resend(const std::vector<std::uint64_t>& ids) {
  for (auto& [name, entry] : pending_) {
    if (!entry.announced_id || !contains(ids, *entry.announced_id)) continue;
    entry.announced_id.reset();
    up_.announcements.push_back(announce(entry, false));
  }
}

void Negotiator::apply(ResponseList responses) {
  ++applied_;
  for (const Response& response : responses) {
    switch (response.kind) {
      case ResponseKind::execute:
        cache_.apply(response);
        pending_.erase(response.request.name);
        break;
      case ResponseKind::error: apply_error(response); break;
      case ResponseKind::warning: break;
      case ResponseKind::joined:
        self_joined_ = false;
        joined_.clear();
        break;
      case ResponseKind::left:
        closed_ = response.status;
        pending_.clear();
        newly_complete_.clear();
        up_ = {};
        ready_.clear();
        groups_.clear();
        break;
    }
  }
  const auto answered = [&](const std::string& name) { return !pending_.contains(name); };
  std::erase_if(newly_complete_, answered);
  std::erase_if(ready_, answered);
  agreed_.push_back(std::move(responses));
}

void Negotiator::apply_error(const Response& response) {
  const std::string& group = response.request.group;
  const bool stalled = response.status.code() == ErrorCode::stalled;
  bool took_part = false;
  for (auto entry = pending_.begin(); entry != pending_.end();) {
    const std::string& entry_group = entry->second.variants.empty()
                                         ? std::string()
                                         : entry->second.variants.front().request.group;
    if (entry->first != response.request.name && (group.empty() || entry_group != group)) {
      ++entry;
      continue;
    }
    took_part = took_part || entry->second.self_ready;
    entry = pending_.erase(entry);
  }
  groups_.erase(group);
  if (!children_.empty()) {
    failed_at_[group.empty() ? response.request.name : group_key(group)] = applied_;
  }
  if (stalled && !took_part && !self_joined_) {
    missed_[group.empty() ? response.request.name : group_key(group)] = response.status;
  }
}

// --- Flush ----------------------------------------------------------------------------------------

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

Announcement Negotiator::announce(const Entry& entry, bool partial) const {
  Announcement announcement;
  announcement.partial = partial;
  announcement.variants = entry.variants;
  announcement.first_extents = {entry.first_extents.begin(), entry.first_extents.end()};
  if (partial) {
    for (const auto& [child, below] : entry.partial_children) {
      announcement.variants.insert(announcement.variants.end(), below.variants.begin(),
                                   below.variants.end());
    }
    return announcement;
  }
  announcement.absent = absent_ranks(entry);
  if (announcement.variants.size() == 1) announcement.variants.front().ranks.clear();
  return announcement;
}

const ResponseCache::Entry* Negotiator::cached(const Entry& entry) const {
  if (entry.variants.size() != 1 || !joined_.empty()) return nullptr;
  const Request& request = entry.variants.front().request;
  if (!request.error.ok()) return nullptr;
  const ResponseCache::Entry* known = cache_.find(request.name);
  if (known == nullptr || compare(known->request, request)) return nullptr;
  for (const auto& [rank, rows] : entry.first_extents) {
    if (known->first_extents[rank] != rows) return nullptr;
  }
  return known;
}

// --- The root -------------------------------------------------------------------------------------

void Negotiator::flush_root() {
  for (const std::string& name : std::exchange(newly_complete_, {})) {
    const Entry& entry = pending_.at(name);
    if (entry.variants.front().request.group.empty()) {
      ready_.push_back(name);
    } else {
      release_group(name, entry);
    }
  }

  std::vector<ResponseList> lists = std::exchange(urgent_, {});
  std::size_t held_bytes = 0;
  for (const std::string& name : ready_) {
    held_bytes += pending_.at(name).variants.front().request.bytes();
  }
  const bool everyone_joined = joined_.size() == options_.members.size();
  const bool release = !busy_ || everyone_joined || !leaving_.empty() ||
                       held_bytes >= static_cast<std::size_t>(options_.fusion_threshold);
  if (release && !ready_.empty()) {
    ResponseList list;
    for (const std::string& name : ready_) list.push_back(respond(name, pending_.at(name)));
    ready_.clear();
    lists.push_back(std::move(list));
  }
  if (everyone_joined) {
    Response response;
    response.kind = ResponseKind::joined;
    response.rank = joined_.back();
    lists.push_back({response});
  }
  if (!leaving_.empty()) {
    Response response;
    response.kind = ResponseKind::left;
    response.rank = leaving_.front();
    response.status = Status(ErrorCode::shutdown,
                             str(describe({response.rank}), " has shut down"),
                             options_.members[static_cast<std::size_t>(response.rank)]);
    lists.push_back({response});
  }
  for (ResponseList& list : lists) {
    const std::vector<std::byte> message = encode(list, cache_);
    for (const int child : children_) outgoing_.push_back({child, message});
    apply(std::move(list));
  }
}

void Negotiator::release_group(const std::string& name, const Entry& entry) {
  const Request& request = entry.variants.front().request;
  std::vector<std::string>& members = groups_[request.group];
  members.push_back(name);
  const Status error = verdict(name, entry);
  if (!error.ok()) {
    // One error fails the whole group; its members that are still pending need no answer of their own.
    ready_.push_back(name);
    groups_.erase(request.group);
  } else if (static_cast<int>(members.size()) == request.group_size) {
    std::sort(members.begin(), members.end());
    ready_.insert(ready_.end(), members.begin(), members.end());
    groups_.erase(request.group);
  }
}

Response Negotiator::respond(const std::string& name, const Entry& entry) const {
  Response response;
  response.request = entry.variants.front().request;
  response.status = verdict(name, entry);
  if (!response.status.ok()) {
    response.kind = ResponseKind::error;
    for (const Variant& variant : entry.variants) {
      if (!variant.request.group.empty()) response.request.group = variant.request.group;
      if (!variant.request.error.ok()) response.request.splits = variant.request.splits;
    }
    return response;
  }
  response.absent = absent_ranks(entry);
  if (response.request.collective == Collective::allgather) {
    response.first_extents.assign(options_.members.size(), 0);
    for (const auto& [rank, rows] : entry.first_extents) response.first_extents[rank] = rows;
  }
  return response;
}

Status Negotiator::verdict(const std::string& name, const Entry& entry) const {
  for (const Variant& variant : entry.variants) {
    const Status& error = variant.request.error;
    if (error.ok()) continue;
    const int culprit = variant.ranks.front();
    return {error.code(),
            str(describe(variant.ranks), " cannot take part in ", quoted(name), ": ",
                error.to_string()),
            options_.members[static_cast<std::size_t>(culprit)]};
  }
  const Request& first = entry.variants.front().request;
  if (entry.variants.size() == 1) {
    const std::vector<int> absent = absent_ranks(entry);
    if (absent.empty()) return {};
    if (first.collective == Collective::broadcast && contains(absent, first.root)) {
      return {ErrorCode::invalid_argument,
              str(quoted(name), ": the root of the broadcast, ", describe({first.root}),
                  ", has joined and has nothing to send")};
    }
    if (first.collective == Collective::alltoall) {
      return {ErrorCode::invalid_argument,
              str(quoted(name), ": alltoall cannot run once ", describe(absent), " has joined")};
    }
    return {};
  }
  return mismatch(name, entry.variants);
}

// Beginning with what most ranks say, so that text and blame do not depend on who came first.
Status Negotiator::mismatch(const std::string& name, std::vector<Variant> variants) const {
  std::sort(variants.begin(), variants.end(), [](const Variant& left, const Variant& right) {
    return left.ranks.size() != right.ranks.size() ? left.ranks.size() > right.ranks.size()
                                                   : left.ranks.front() < right.ranks.front();
  });
  std::string text;
  std::string_view previous;
  for (std::size_t i = 1; i < variants.size(); ++i) {
    const auto difference = compare(variants.front().request, variants[i].request);
    if (!difference) continue;
    if (difference->field != previous) {
      text += str(text.empty() ? "" : "; ", difference->field, " differs between ranks: ",
                  difference->left, " on ", describe(variants.front().ranks));
    }
    text += str(", ", difference->right, " on ", describe(variants[i].ranks));
    previous = difference->field;
  }
  return {ErrorCode::mismatch, str(quoted(name), ": ", text),
          options_.members[static_cast<std::size_t>(variants[1].ranks.front())]};
}

// --- Stalls ---------------------------------------------------------------------------------------

// Inner nodes tell what they have seen of a name after half the time, so that the root knows when it judges.
Duration Negotiator::report_interval() const {
  const Duration whole =
      options_.stall_warning > Duration::zero() ? options_.stall_warning : options_.stall_error;
  return whole / 2;
}

std::optional<Time> Negotiator::next_deadline() const {
  if (report_interval() == Duration::zero()) return std::nullopt;
  std::optional<Time> earliest;
  for (const auto& [name, entry] : pending_) {
    if (entry.complete) continue;
    Time due = entry.next_report;
    if (tree_.is_root() && options_.stall_error > Duration::zero()) {
      due = std::min(due, entry.since + options_.stall_error);
    }
    if (!earliest || due < *earliest) earliest = due;
  }
  return earliest;
}

void Negotiator::check_stalls(Time now) {
  if (report_interval() == Duration::zero()) return;
  ResponseList responses;
  for (auto& [name, entry] : pending_) {
    if (entry.complete) continue;
    if (tree_.is_root()) {
      check_root_stall(name, entry, now, responses);
    } else if (now >= entry.next_report) {
      Announcement report = announce(entry, true);
      report.age = to_seconds(now - entry.since);
      up_.announcements.push_back(std::move(report));
      entry.next_report = now + report_interval();
    }
  }
  if (!responses.empty()) urgent_.push_back(std::move(responses));
}

void Negotiator::check_root_stall(const std::string& name, Entry& entry, Time now,
                                  ResponseList& responses) {
  const bool fails = options_.stall_error > Duration::zero() &&
                     now >= entry.since + options_.stall_error;
  const bool warns = options_.stall_warning > Duration::zero() && now >= entry.next_report;
  if (!fails && !warns) return;
  entry.next_report = now + options_.stall_warning;

  const std::vector<int> ready = ready_ranks(entry);
  std::vector<int> missing;
  for (int rank = 0; rank < tree_.size(); ++rank) {
    if (!std::binary_search(ready.begin(), ready.end(), rank) && !contains(joined_, rank)) {
      missing.push_back(rank);
    }
  }
  if (missing.empty()) return;
  const Request& request = entry.variants.empty()
                               ? entry.partial_children.begin()->second.variants.front().request
                               : entry.variants.front().request;
  Response response;
  response.kind = fails ? ResponseKind::error : ResponseKind::warning;
  response.request.name = name;
  response.request.collective = request.collective;
  response.request.group = request.group;
  response.status =
      Status(ErrorCode::stalled,
             str(quoted(name), " (", name_of(request.collective), ") has waited for ",
                 std::round(to_seconds(now - entry.since) * 10) / 10, " s: submitted by ",
                 describe(ready), ", missing on ", describe(missing)),
             options_.members[static_cast<std::size_t>(missing.front())]);
  responses.push_back(std::move(response));
}

// --- Words ----------------------------------------------------------------------------------------

std::string Negotiator::describe(const std::vector<int>& set_ranks) const {
  std::vector<int> world_ranks;
  for (const int rank : set_ranks) {
    world_ranks.push_back(options_.members[static_cast<std::size_t>(rank)]);
  }
  return describe_ranks(world_ranks);
}

std::string Negotiator::quoted(const std::string& name) const {
  return options_.set_name.empty() ? str("'", name, "'")
                                   : str("'", name, "' (", options_.set_name, ")");
}

}  // namespace rueda
