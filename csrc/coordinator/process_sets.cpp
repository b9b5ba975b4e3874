#include "coordinator/process_sets.h"

#include <algorithm>
#include <numeric>

#include "core/strings.h"
#include "rueda/types.h"

namespace rueda {

// FNV-1a.
std::uint64_t definition_of(const std::vector<int>& ranks) {
  std::uint64_t hash = 14695981039346656037U;
  for (const int rank : ranks) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<std::uint32_t>(rank) >> shift) & 0xff)) * 1099511628211U;
    }
  }
  return hash;
}

std::optional<int> ProcessSetMembers::member_of(int world_rank) const {
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), world_rank);
  if (found == ranks.end() || *found != world_rank) return std::nullopt;
  return static_cast<int>(found - ranks.begin());
}

std::string ProcessSetMembers::name() const {
  return id == 0 ? std::string() : str("process set ", id);
}

std::string ProcessSetMembers::description() const {
  return ranks.empty() ? "all of whose members are lost" : str("which has ", describe_ranks(ranks));
}

ProcessSets::ProcessSets(int rank, int world_size) : rank_(rank), world_size_(world_size) {
  std::vector<int> world(static_cast<std::size_t>(world_size));
  std::iota(world.begin(), world.end(), 0);
  sets_[0] = std::make_shared<ProcessSetMembers>(ProcessSetMembers{0, std::move(world), rank});
  next_id_ = 1;
}

ProcessSets::ProcessSets(int rank, const std::vector<std::optional<KnownSets>>& known)
    : ProcessSets(rank, static_cast<int>(known.size())) {
  if (const auto& own = known[static_cast<std::size_t>(rank)]) gone_ = own->gone;
  std::map<int, KnownSets::Known> all;
  for (const auto& each : known) {
    if (!each) continue;
    next_id_ = std::max(next_id_, each->next_id);
    for (const auto& set : each->sets) all.emplace(set.id, set);
  }
  for (const auto& [id, set] : all) inherit(set, known);
}

void ProcessSets::inherit(KnownSets::Known set,
                          const std::vector<std::optional<KnownSets>>& known) {
  auto members = std::make_shared<ProcessSetMembers>();
  members->id = set.id;
  members->definition = set.definition;
  std::vector<int> with;
  std::vector<int> without;
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto& its = known[static_cast<std::size_t>(rank)];
    if (!its) continue;
    const auto found = std::find_if(its->sets.begin(), its->sets.end(),
                                    [&](const auto& each) { return each.id == set.id; });
    (found == its->sets.end() ? without : with).push_back(rank);
    if (found == its->sets.end() || !found->is_member) continue;
    if (rank == rank_) members->rank = members->size();
    members->ranks.push_back(rank);
  }
  if (without.empty()) {
    sets_[set.id] = std::move(members);
    return;
  }
  gone_[set.id] =
      str("it was being added or removed when the previous world broke: ", describe_ranks(with),
          " had it and ", describe_ranks(without), " had not: add it again");
}

KnownSets ProcessSets::known() const {
  const std::lock_guard lock(mutex_);
  return known_locked();
}

KnownSets ProcessSets::hand_over() {
  const std::lock_guard lock(mutex_);
  is_handed_over_ = true;
  return known_locked();
}

KnownSets ProcessSets::offer() {
  const std::lock_guard lock(mutex_);
  is_offered_ = true;
  return known_locked();
}

void ProcessSets::take_back() {
  const std::lock_guard lock(mutex_);
  is_offered_ = false;
}

KnownSets ProcessSets::known_locked() const {
  KnownSets known;
  known.next_id = next_id_;
  known.gone = gone_;
  for (const auto& [id, members] : sets_) {
    if (id == 0 || kind_of(id) != Kind::added) continue;
    known.sets.push_back({id, members->rank >= 0, members->definition});
  }
  return known;
}

Status ProcessSets::missing(int id) const {
  const std::lock_guard lock(mutex_);
  return missing_locked(id);
}

Status ProcessSets::refusal() const {
  if (is_handed_over_) {
    return {ErrorCode::peer_lost, "the world has broken, and a new one has been formed"};
  }
  return {};
}

Status ProcessSets::missing_locked(int id) const {
  const auto why = gone_.find(id);
  return {ErrorCode::invalid_argument,
          str("there is no process set ", id,
              why == gone_.end() ? std::string() : str(": ", why->second))};
}

std::shared_ptr<const ProcessSetMembers> ProcessSets::find(int id) const {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(id);
  return found == sets_.end() ? nullptr : found->second;
}

std::vector<int> ProcessSets::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ids;
  for (const auto& [id, members] : sets_) ids.push_back(id);
  return ids;
}

ProcessSets::Kind ProcessSets::kind_of(int id) {
  return id < first_formed ? Kind::added : Kind::formed;
}

std::size_t ProcessSets::count(Kind kind) const {
  return static_cast<std::size_t>(std::count_if(
      sets_.begin(), sets_.end(), [&](const auto& set) { return kind_of(set.first) == kind; }));
}

Expected<std::shared_ptr<ProcessSetMembers>> ProcessSets::members_of(const std::vector<int>& ranks,
                                                                     Kind kind) const {
  auto members = std::make_shared<ProcessSetMembers>();
  members->ranks = ranks;
  std::sort(members->ranks.begin(), members->ranks.end());
  const auto invalid = [&](const auto&... why) {
    return Status(ErrorCode::invalid_argument,
                  str(kind == Kind::added ? "add_process_set(" : "create_group(",
                      describe_ranks(members->ranks), "): ", why...));
  };
  if (ranks.empty()) return invalid("a process set needs at least one rank");
  if (members->ranks.front() < 0 || members->ranks.back() >= world_size_) {
    return invalid("the world has ranks 0 to ", world_size_ - 1);
  }
  if (std::adjacent_find(members->ranks.begin(), members->ranks.end()) != members->ranks.end()) {
    return invalid("a rank is named twice");
  }
  if (count(kind) >= process_set_limit) {
    return Status(ErrorCode::unsupported,
                  str("there are too many process sets (at most ", process_set_limit, " at once)"));
  }
  const auto self = std::lower_bound(members->ranks.begin(), members->ranks.end(), rank_);
  if (self != members->ranks.end() && *self == rank_) {
    members->rank = static_cast<int>(self - members->ranks.begin());
  }
  members->definition = definition_of(members->ranks);
  return members;
}

// Sets of one kind that exist at the same time have different slots.
bool ProcessSets::is_slot_taken(int id) const {
  return std::any_of(sets_.begin(), sets_.end(), [&](const auto& set) {
    return kind_of(set.first) == kind_of(id) && slot_of(set.first) == slot_of(id);
  });
}

Expected<std::shared_ptr<const ProcessSetMembers>> ProcessSets::add(const std::vector<int>& ranks,
                                                                    bool* was_offered) {
  const std::lock_guard lock(mutex_);
  if (was_offered != nullptr) *was_offered = is_offered_;
  auto made = members_of(ranks, Kind::added);
  if (!made) return made.status();
  const auto members = std::move(made).value();
  if (Status refused = refusal(); !refused.ok()) return refused;
  while (is_slot_taken(next_id_)) ++next_id_;
  members->id = next_id_++;
  sets_[members->id] = members;
  return std::shared_ptr<const ProcessSetMembers>(members);
}

Expected<std::shared_ptr<const ProcessSetMembers>> ProcessSets::form(
    int id, const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  auto made = members_of(ranks, Kind::formed);
  if (!made) return made.status();
  const auto members = std::move(made).value();
  const auto invalid = [&](const auto&... why) {
    return Status(ErrorCode::invalid_argument, str("create_group(", id, "): ", why...));
  };
  if (members->rank < 0) {
    return invalid("rank ", rank_, " is not among the ", describe_ranks(members->ranks));
  }
  if (id < first_formed) return invalid("the numbers of groups begin at ", first_formed);
  if (id >= end_of_formed) return invalid("the numbers of groups end at ", end_of_formed - 1);
  if (formed_.contains(id)) return invalid("the number has been used before");
  if (is_slot_taken(id)) {
    return invalid("another group of this rank uses its slot, ", slot_of(id), " of 0 to ",
                   process_set_limit - 1);
  }
  members->id = id;
  formed_.insert(id);
  sets_[id] = members;
  return std::shared_ptr<const ProcessSetMembers>(members);
}

Status ProcessSets::remove(int id, bool* was_offered) {
  const std::lock_guard lock(mutex_);
  if (was_offered != nullptr) *was_offered = is_offered_;
  if (id == 0) return {ErrorCode::invalid_argument, "the world cannot be removed"};
  if (kind_of(id) == Kind::added) {
    if (Status refused = refusal(); !refused.ok()) return refused;
  }
  return sets_.erase(id) == 0 ? missing_locked(id) : Status();
}

void ProcessSets::give_up(int id) {
  const std::lock_guard lock(mutex_);
  if (kind_of(id) == Kind::formed) formed_.insert(id);
}

bool ProcessSets::existed(int id) const {
  const std::lock_guard lock(mutex_);
  return id < next_id_ || formed_.contains(id);
}

}  // namespace rueda
