// What a process knows of an epoch that broke: which members have ended, which do not reach each
// other, and which worlds were decided on and given up. It sends this to the others as a
// SurvivorView, from which the same outcome follows for all that know the same.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/status.h"
#include "plan/survivor_message.h"

namespace rueda {

// What follows from a view; members agree once they have the same one.
struct SurvivorOutcome {
  std::vector<int> survivors;
  std::vector<int> ended;
  std::vector<std::vector<int>> given_up;  // worlds that may be formed nevertheless
  [[nodiscard]] bool operator==(const SurvivorOutcome&) const = default;
};

class SurvivorKnowledge {
 public:
  // `members`: of the epoch, sorted; `rank` is one of them.
  SurvivorKnowledge(int rank, std::vector<int> members, std::uint64_t epoch);

  [[nodiscard]] const SurvivorView& view() const { return view_; }
  [[nodiscard]] std::uint64_t epoch() const { return view_.epoch; }
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  // What users know a member by: its rank in the epoch with which this process began to agree. -1
  // if it was no member of it.
  [[nodiscard]] int rank_of(int member) const;
  [[nodiscard]] int own_rank() const { return rank_of(rank_); }
  [[nodiscard]] std::vector<int> ranks_of(const std::vector<int>& members) const;
  [[nodiscard]] bool has_ended(int member) const { return view_.ended.contains(member); }
  // As far as this process has found out itself.
  [[nodiscard]] bool reaches(int member) const { return !view_.broken.contains({rank_, member}); }
  [[nodiscard]] bool reaches_any_of(const std::vector<int>& members) const;
  // Null if no world with this number was given up.
  [[nodiscard]] const std::vector<int>* find_given_up(std::uint64_t epoch) const;

  [[nodiscard]] SurvivorOutcome outcome() const { return outcome_of(view_); }
  [[nodiscard]] SurvivorOutcome outcome_of(const SurvivorView& view) const;
  // Whether a view of this epoch mentions only its members.
  [[nodiscard]] bool is_plausible(const SurvivorView& view) const;

  // Another report on a known member changes nothing.
  void add_ended(int member, const Status& cause) { view_.ended.emplace(member, cause); }
  void add_unreachable(int member, const Status& cause) {
    view_.broken.emplace(BrokenLink{rank_, member}, cause);
  }
  void propose(std::uint64_t number) { view_.proposal = view_.reached[rank_] = number; }
  // This process had decided on the world and gives it up. Others may form it nevertheless.
  void give_up(const std::vector<int>& world, std::uint64_t epoch);
  // What another member knows. `was_stopped`: this process was, so it cannot tell who is silent.
  void merge(const SurvivorView& view, bool was_stopped);
  // Others have formed a later epoch, which has also broken. `survivors`: as known here.
  void continue_from(const EpochHasGoneOn& message, const std::vector<int>& survivors);

  // Why the member is lost: according to one of `survivors`, or else to itself.
  [[nodiscard]] Status cause_of(int member, const std::vector<int>& survivors) const;

  // Those of `all` (sorted) that are not in `survivors`, and why; excludes this process. The reason
  // is `unreachable` for those that did not answer this process.
  [[nodiscard]] std::vector<std::pair<int, Status>> lost(const std::vector<int>& all,
                                                         const std::vector<int>& survivors) const;

 private:
  // "rank 1 cannot reach rank 2", as `observer` says.
  [[nodiscard]] Status does_not_reach(int observer, int member, const Status& cause) const;

  int rank_;
  std::vector<int> first_members_;
  std::vector<int> members_;
  std::map<int, Status> lost_earlier_;  // in epochs before this one
  SurvivorView view_;
};

// Both sorted.
[[nodiscard]] std::vector<int> without(const std::vector<int>& all, const std::vector<int>& some);

}  // namespace rueda
