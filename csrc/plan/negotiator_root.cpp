// What the root of the tree decides, and how long it, and the nodes beneath, wait.
#include <algorithm>
#include <cmath>

#include "core/strings.h"
#include "plan/negotiator.h"
#include "plan/rank_list.h"

namespace rueda {

namespace {

// A message names so many different ways to ask for a tensor, and counts the rest.
constexpr std::size_t max_variants = 8;

}  // namespace

// --- Decisions

void Negotiator::flush_root() {
  for (const std::string& name : std::exchange(newly_complete_, {})) queue_ready(name);
  std::vector<std::string> held = may_release() ? std::vector<std::string>() : take_held();
  send_down(release());
  ready_ = std::move(held);
  const bool resolved = std::all_of(unresolved_.begin(), unresolved_.end(),
                                    [](const auto& child) { return child.second == 0; });
  if (joined_.size() == options_.members.size() && resolved) {
    send_down(fail_unfinished_groups());
    Response response;
    response.kind = ResponseKind::joined;
    response.rank = joined_.back();
    send_down({response});
  }
  if (!leaving_.empty()) {
    Response response;
    response.kind = ResponseKind::left;
    response.rank = leaving_.front();
    response.status = Status(ErrorCode::shutdown,
                             str(describe({response.rank}),
                                 options_.set_name.empty() ? std::string(" has shut down")
                                                           : str(" has left ", options_.set_name)),
                             world_rank(response.rank));
    send_down({response});
  }
}

void Negotiator::queue_ready(const std::string& name) {
  const Entry& entry = pending_.at(name);
  const Request& request = entry.variants.front().request;
  // An error fails the whole group at once; its members that are still pending need no answer of
  // their own.
  if (request.group.empty() || groups_of(entry).size() > 1 || !verdict(name, entry).ok()) {
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

bool Negotiator::may_release() const {
  if (!load_.is_busy || !leaving_.empty() || joined_.size() == options_.members.size()) return true;
  std::size_t held_bytes = 0;
  for (const std::string& name : ready_) {
    const Request& request = pending_.at(name).variants.front().request;
    if (request.error.ok()) held_bytes += request.bytes();
  }
  return held_bytes >=
         static_cast<std::size_t>(std::max<std::int64_t>(0, options_.fusion_threshold));
}

std::int32_t Negotiator::priority_of(const std::string& name) const {
  return pending_.at(name).variants.front().request.priority;
}

// Out of what is ready, what has to wait for what is under way.
std::vector<std::string> Negotiator::take_held() {
  const auto held =
      std::stable_partition(ready_.begin(), ready_.end(), [this](const std::string& name) {
        const Request& request = pending_.at(name).variants.front().request;
        return !load_.holds_back({request.priority, request.error.ok() ? request.bytes() : 0});
      });
  std::vector<std::string> taken(std::make_move_iterator(held),
                                 std::make_move_iterator(ready_.end()));
  ready_.erase(held, ready_.end());
  return taken;
}

// The most urgent first, of these what has been ready for longest. Errors go before all: a member
// of a group that was fine when it became ready may have been amended since, and then no other
// member may be executed.
ResponseList Negotiator::release() {
  std::stable_sort(ready_.begin(), ready_.end(),
                   [this](const std::string& left, const std::string& right) {
                     return priority_of(left) > priority_of(right);
                   });
  ResponseList list;
  Groups failed;
  for (const std::string& name : ready_) {
    const Entry& entry = pending_.at(name);
    if (verdict(name, entry).ok()) continue;
    const Groups groups = groups_of(entry);
    if (groups.size() == 1 && failed.contains(*groups.begin())) continue;
    add_error(list, respond(entry), groups);
    failed.insert(groups.begin(), groups.end());
    failed.erase("");
  }
  for (const std::string& name : ready_) {
    const Entry& entry = pending_.at(name);
    if (failed.contains(entry.variants.front().request.group)) continue;
    if (verdict(name, entry).ok()) list.push_back(respond(entry));
  }
  ready_.clear();
  return list;
}

// Everybody has joined, so nobody will hand in the rest.
ResponseList Negotiator::fail_unfinished_groups() const {
  ResponseList list;
  for (const auto& [group, members] : groups_) {
    Response response = respond(pending_.at(members.front()));
    response.status =
        Status(ErrorCode::mismatch, str(quoted(response.request.name), ": its group '", group,
                                        "' is incomplete, and all ranks have joined"));
    response.kind = ResponseKind::error;
    add_error(list, response, {group});
  }
  return list;
}

void Negotiator::send_down(ResponseList list) {
  if (list.empty()) return;
  const std::vector<std::byte> message = encode(list, cache_);
  for (const int child : children_) outgoing_.push_back({child, message});
  apply(std::move(list));
}

Response Negotiator::respond(const Entry& entry) const {
  Response response;
  response.request = entry.variants.front().request;
  response.status = verdict(response.request.name, entry);
  if (!response.status.ok()) {
    response.kind = ResponseKind::error;
    const auto refused = [](const Asked& variant) { return !variant.request.error.ok(); };
    const auto who = std::find_if(entry.variants.begin(), entry.variants.end(), refused);
    if (who != entry.variants.end()) response.other_set = who->request.other_set;
    return response;
  }
  response.absent = absent_ranks(entry);
  const Collective collective = response.request.collective;
  if (collective == Collective::allgather || collective == Collective::alltoall) {
    // No rank's own extent, lest ranks that know the response from their caches see another's.
    response.request.shape.front() = 0;
  }
  if (collective == Collective::allgather) {
    response.first_extents.assign(options_.members.size(), 0);
    for (const auto& [rank, rows] : entry.first_extents) {
      response.first_extents[static_cast<std::size_t>(rank)] = rows;
    }
  }
  return response;
}

void Negotiator::add_error(ResponseList& list, const Response& error, const Groups& groups) {
  for (const std::string& group : groups) {
    if (group.empty() && groups.size() > 1) continue;  // the others fail the name, too
    list.push_back(error);
    list.back().request.group = group;
  }
}

Status Negotiator::verdict(const std::string& name, const Entry& entry) const {
  for (const Asked& variant : entry.variants) {
    const Status& error = variant.request.error;
    if (error.ok()) continue;
    const std::vector<int> ranks = ranks_of(entry, variant);
    ErrorDetails details = error.details();
    details.tensor = name;
    return {error.code(),
            str(describe(ranks), " cannot take part in ", quoted(name), ": ", error.to_string()),
            ranks.empty() ? -1 : world_rank(ranks.front()), std::move(details)};
  }
  return entry.variants.size() == 1 ? verdict_on_absent(name, entry)
                                    : verdict_on_variants(name, entry);
}

Status Negotiator::verdict_on_absent(const std::string& name, const Entry& entry) const {
  const Request& request = entry.variants.front().request;
  const std::vector<int> absent = absent_ranks(entry);
  if (absent.empty()) return {};
  if (request.collective == Collective::broadcast && contains(absent, request.root)) {
    return {ErrorCode::invalid_argument,
            str(quoted(name), ": the root of the broadcast, ", describe({request.root}),
                ", has joined and has nothing to send")};
  }
  if (request.collective == Collective::alltoall ||
      request.collective == Collective::persistent_allreduce) {
    return {ErrorCode::invalid_argument, str(quoted(name), ": ", name_of(request.collective),
                                             " cannot run once ", describe(absent), " has joined")};
  }
  if (!request.leaf_ranks.empty()) {
    return {ErrorCode::invalid_argument,
            str(quoted(name), ": an allreduce of leaves cannot run once ", describe(absent),
                " has joined, whose leaves would be missing")};
  }
  return {};
}

// Beginning with what most ranks say, so that text and blame do not depend on who came first.
Status Negotiator::verdict_on_variants(const std::string& name, const Entry& entry) const {
  struct Party {
    const Request* request;
    std::vector<int> ranks;
  };
  std::vector<Party> parties;
  for (const Asked& variant : entry.variants) {
    parties.push_back({&variant.request, ranks_of(entry, variant)});
  }
  std::sort(parties.begin(), parties.end(), [](const Party& left, const Party& right) {
    return left.ranks.size() != right.ranks.size() ? left.ranks.size() > right.ranks.size()
                                                   : left.ranks < right.ranks;
  });
  const std::size_t shown = std::min(parties.size(), max_variants);
  std::string text;
  std::string_view previous;
  ErrorDetails details{.tensor = name};
  for (std::size_t i = 1; i < shown; ++i) {
    const auto difference = compare(*parties.front().request, *parties[i].request);
    if (!difference) continue;
    if (difference->field != previous) {
      text += str(text.empty() ? "" : "; ", difference->field,
                  " differs between ranks: ", difference->left, " on ",
                  describe(parties.front().ranks));
    }
    text += str(", ", difference->right, " on ", describe(parties[i].ranks));
    previous = difference->field;
    if (details.field.empty()) {
      details.field = difference->field;
      details.values = {difference->left};
    }
    if (details.field == difference->field) details.values.push_back(difference->right);
  }
  if (details.field == "device") text += ": all must be on GPUs, or all on the CPU";
  if (shown < parties.size()) {
    text += str(", and in ", parties.size() - shown, " more ways on other ranks");
  }
  const std::vector<int>& deviating = parties[1].ranks;
  return {ErrorCode::mismatch, str(quoted(name), ": ", text),
          deviating.empty() ? -1 : world_rank(deviating.front()), std::move(details)};
}

// --- Stalls

// Inner nodes tell what they have seen of a name after half the time, so that the root knows when
// it judges.
Duration Negotiator::report_interval() const {
  return stall_timeout() / 2;
}

// How long the root waits before it says anything.
Duration Negotiator::stall_timeout() const {
  const Duration warning = options_.stall_warning;
  const Duration error = options_.stall_error;
  if (warning <= Duration::zero()) return std::max(error, Duration::zero());
  return error <= Duration::zero() ? warning : std::min(warning, error);
}

Time Negotiator::first_report(Time since) const {
  return since + (tree_.is_root() ? stall_timeout() : report_interval());
}

// What is new since the last report goes up soon, on all levels within one interval; not at once,
// lest a node passes on each of many reports.
void Negotiator::report_soon(Entry& entry, Time now) {
  if (tree_.is_root() || !entry.reported) return;
  entry.next_report = std::min(entry.next_report, now + report_interval() / 32);
  next_check_ = std::min(next_check_, entry.next_report);
}

Time Negotiator::later_report(Time since, Time now) const {
  if (!tree_.is_root()) return now + report_interval();
  const bool warns = options_.stall_warning > Duration::zero();
  const Time next = now + (warns ? options_.stall_warning : report_interval());
  const Time error = since + options_.stall_error;
  return error > now ? std::min(next, error) : next;
}

std::optional<Time> Negotiator::next_deadline() const {
  if (report_interval() == Duration::zero() || pending_.empty()) return std::nullopt;
  if (next_check_ == Time::max()) return std::nullopt;
  return next_check_;
}

void Negotiator::check_stalls(Time now) {
  if (report_interval() == Duration::zero() || now < next_check_) return;
  next_check_ = Time::max();
  ResponseList responses;
  for (auto& [name, entry] : pending_) {
    if (entry.complete) continue;
    if (now >= entry.next_report) {
      if (tree_.is_root()) {
        if (inquire(entry, now)) continue;
        judge(name, entry, now, responses);
      } else {
        up_.announcements.push_back(announce(entry, true));
        up_.announcements.back().age = to_seconds(now - entry.since);
      }
      entry.reported = true;
      entry.next_report = later_report(entry.since, now);
    }
    next_check_ = std::min(next_check_, entry.next_report);
  }
  send_down(std::move(responses));
}

std::vector<int> Negotiator::missing_beside(const std::vector<int>& ready) const {
  std::vector<bool> here(options_.members.size(), false);
  for (const int rank : ready) here[static_cast<std::size_t>(rank)] = true;
  for (const int rank : joined_) here[static_cast<std::size_t>(rank)] = true;
  std::vector<int> missing;
  for (int rank = 0; rank < tree_.size(); ++rank) {
    if (!here[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  return missing;
}

// Whether the report on `entry`, which is due, has to wait for what missing ranks say; once only.
bool Negotiator::inquire(Entry& entry, Time now) {
  if (!options_.asks_whereabouts || std::exchange(entry.inquiring, false)) return false;
  const auto until = inquiry_.begin(missing_beside(ready_ranks(entry)), now);
  if (!until) return false;
  entry.inquiring = true;
  entry.next_report = *until;
  next_check_ = std::min(next_check_, *until);
  return true;
}

void Negotiator::hear_whereabouts(int rank, std::string text, Time now) {
  if (!inquiry_.hear(rank, std::move(text), now)) return;
  for (auto& [name, entry] : pending_) {
    if (entry.inquiring) entry.next_report = now;
  }
  next_check_ = now;
}

void Negotiator::judge(const std::string& name, const Entry& entry, Time now,
                       ResponseList& responses) const {
  const std::vector<int> ready = ready_ranks(entry);
  const std::vector<int> missing = missing_beside(ready);
  if (missing.empty()) return;  // the last announcements are under way

  const bool fails =
      options_.stall_error > Duration::zero() && now >= entry.since + options_.stall_error;
  const Groups groups = groups_of(entry);
  Response response;
  response.kind = fails ? ResponseKind::error : ResponseKind::warning;
  response.request.name = name;
  response.request.collective =
      (entry.variants.empty() ? entry.partial_children.begin()->second.variants.front().request
                              : entry.variants.front().request)
          .collective;
  response.request.group = *groups.rbegin();
  response.status = Status(
      ErrorCode::stalled,
      str(quoted(name), " (", name_of(response.request.collective), ") has waited for ",
          std::round(to_seconds(now - entry.since) * 10) / 10, " s: submitted by ", describe(ready),
          ", missing on ", describe(missing),
          inquiry_.report(missing, now, [this](const auto& ranks) { return describe(ranks); })),
      world_rank(missing.front()), {.tensor = name});
  if (!fails) {
    responses.push_back(std::move(response));
    return;
  }
  // A group fails once: for the second error, who has had the first would seem to have missed it.
  const auto same_group = [&](const Response& other) {
    return other.kind == ResponseKind::error && groups.size() == 1 && !groups.begin()->empty() &&
           other.request.group == *groups.begin();
  };
  if (std::any_of(responses.begin(), responses.end(), same_group)) return;
  add_error(responses, response, groups);
}

}  // namespace rueda
