#include "plan/survivor_knowledge.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "core/strings.h"
#include "plan/rank_list.h"
#include "plan/survivor_choice.h"

namespace rueda {

std::vector<int> without(const std::vector<int>& all, const std::vector<int>& some) {
  std::vector<int> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(rest));
  return rest;
}

SurvivorKnowledge::SurvivorKnowledge(int rank, std::vector<int> members, std::uint64_t epoch)
    : rank_(rank), first_members_(members), members_(std::move(members)) {
  view_.epoch = epoch;
}

int SurvivorKnowledge::rank_of(int member) const {
  return rank_among(first_members_, member);
}

std::vector<int> SurvivorKnowledge::ranks_of(const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (const int member : members) {
    if (const int rank = rank_of(member); rank >= 0) ranks.push_back(rank);
  }
  return ranks;
}

Status SurvivorKnowledge::does_not_reach(int observer, int member, const Status& cause) const {
  const int rank = rank_of(observer);
  return Status(ErrorCode::peer_lost, str("rank ", rank, " cannot reach rank ", rank_of(member)),
                rank)
      .because(cause);
}

bool SurvivorKnowledge::reaches_any_of(const std::vector<int>& members) const {
  return std::any_of(members.begin(), members.end(),
                     [this](int member) { return reaches(member); });
}

const std::vector<int>* SurvivorKnowledge::find_given_up(std::uint64_t epoch) const {
  const auto found = std::find_if(view_.given_up.begin(), view_.given_up.end(),
                                  [&](const auto& item) { return item.second.epoch == epoch; });
  return found != view_.given_up.end() ? &found->first : nullptr;
}

SurvivorOutcome SurvivorKnowledge::outcome_of(const SurvivorView& view) const {
  SurvivorOutcome outcome;
  for (const auto& item : view.ended) outcome.ended.push_back(item.first);
  std::set<BrokenLink> broken;
  for (const auto& item : view.broken) broken.insert(item.first);
  outcome.survivors = choose_survivors(without(members_, outcome.ended), broken);
  // A member that has not decided on a world and has made a later proposal never will.
  for (const auto& given_up : view.given_up) {
    const auto& members = given_up.first;
    const auto& world = given_up.second;  // clang's lambdas capture no structured binding before 16
    const bool is_possible = std::all_of(members.begin(), members.end(), [&](int member) {
      const auto reached = view.reached.find(member);
      return world.decided.contains(member) || reached == view.reached.end() ||
             reached->second <= world.epoch;
    });
    if (is_possible) outcome.given_up.push_back(members);
  }
  return outcome;
}

bool SurvivorKnowledge::is_plausible(const SurvivorView& view) const {
  const auto is_member = [&](int number) { return contains(members_, number); };
  return std::all_of(view.ended.begin(), view.ended.end(),
                     [&](const auto& item) { return is_member(item.first); }) &&
         std::all_of(view.reached.begin(), view.reached.end(),
                     [&](const auto& item) { return is_member(item.first); }) &&
         std::all_of(view.broken.begin(), view.broken.end(), [&](const auto& item) {
           return is_member(item.first.observer) && is_member(item.first.member);
         });
}

void SurvivorKnowledge::give_up(const std::vector<int>& world, std::uint64_t epoch) {
  GivenUp& given_up = view_.given_up[world];
  given_up.epoch = std::max(given_up.epoch, epoch);
  given_up.decided.insert(rank_);
}

void SurvivorKnowledge::merge(const SurvivorView& view, bool was_stopped) {
  view_.ended.insert(view.ended.begin(), view.ended.end());
  view_.broken.insert(view.broken.begin(), view.broken.end());
  for (const auto& [members, world] : view.given_up) {
    GivenUp& known = view_.given_up[members];
    known.epoch = std::max(known.epoch, world.epoch);
    known.decided.insert(world.decided.begin(), world.decided.end());
  }
  for (const auto& [member, number] : view.reached) {
    std::uint64_t& known = view_.reached[member];
    known = std::max(known, number);
  }
  // If a member does not reach this process, this process does not reach it either, so that the
  // choice between the two does not depend on who says so first. Only a frozen process does not
  // answer.
  if (was_stopped) return;
  for (const auto& [link, cause] : view.broken) {
    if (link.member != rank_ || !reaches(link.observer)) continue;
    add_unreachable(link.observer, shortened(does_not_reach(link.observer, rank_, cause)));
  }
}

void SurvivorKnowledge::continue_from(const EpochHasGoneOn& message,
                                      const std::vector<int>& survivors) {
  for (const int member : without(members_, message.members)) {
    lost_earlier_.emplace(member, cause_of(member, survivors));
    view_.ended.erase(member);
    view_.reached.erase(member);
  }
  members_ = message.members;
  view_.epoch = message.epoch;
  view_.broken.clear();  // links that are still broken are found again
  std::erase_if(view_.given_up,
                [&](const auto& item) { return item.second.epoch <= message.epoch; });
  std::erase_if(view_.reached, [&](const auto& item) { return item.second <= message.epoch; });
}

Status SurvivorKnowledge::cause_of(int member, const std::vector<int>& survivors) const {
  if (const auto found = lost_earlier_.find(member); found != lost_earlier_.end()) {
    return found->second;
  }
  if (const auto found = view_.ended.find(member); found != view_.ended.end()) {
    return found->second;
  }
  Status own;
  for (const auto& [link, cause] : view_.broken) {
    if (link.member == member && contains(survivors, link.observer)) return cause;
    if (link.observer == member && own.ok()) own = does_not_reach(member, link.member, cause);
  }
  return own;
}

std::vector<std::pair<int, Status>> SurvivorKnowledge::lost(
    const std::vector<int>& all, const std::vector<int>& survivors) const {
  std::vector<std::pair<int, Status>> lost;
  for (const int member : without(all, survivors)) {
    if (member == rank_) continue;
    // That a member did not answer is known to those only who have waited for it.
    const auto own = view_.broken.find(BrokenLink{rank_, member});
    const bool is_silent = own != view_.broken.end() && !has_ended(member) &&
                           own->second.details().reason == ErrorReason::unreachable;
    lost.emplace_back(member, is_silent ? own->second : cause_of(member, survivors));
  }
  return lost;
}

}  // namespace rueda
