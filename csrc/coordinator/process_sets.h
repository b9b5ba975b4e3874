// Which process sets exist. Those that all ranks know are changed by the owner of the progress
// lock, in the same order on every rank; read by anyone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "coordinator/patience.h"
#include "core/status.h"
#include "plan/set_slots.h"
#include "rueda/rueda.h"
#include "transport/tag.h"

namespace rueda {

struct ProcessSetMembers {
  int id = 0;
  std::vector<int> ranks;        // of the world, sorted; none where all of them are lost
  int rank = -1;                 // of this process within the set, or -1
  std::uint64_t definition = 0;  // a hash of the ranks with which it was added, in whichever world
  std::shared_ptr<Patience> patience = std::make_shared<Patience>();

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] bool has(int world_rank) const {
    return std::binary_search(ranks.begin(), ranks.end(), world_rank);
  }
  [[nodiscard]] int world_rank(int member) const { return ranks[static_cast<std::size_t>(member)]; }
  // Nothing for a rank that is no member.
  [[nodiscard]] std::optional<int> member_of(int world_rank) const;
  // For messages: "" for the world, which needs no name.
  [[nodiscard]] std::string name() const;
  // The same: "which has ranks 0, 2".
  [[nodiscard]] std::string description() const;
};

// ProcessSetMembers::definition of a set that is added with these ranks, sorted.
[[nodiscard]] std::uint64_t definition_of(const std::vector<int>& ranks);

// What a rank knows of the process sets of its world, for the world that follows. Sets that only
// their members know end with their world.
struct KnownSets {
  struct Known {
    int id = 0;
    bool is_member = false;
    std::uint64_t definition = 0;  // see ProcessSetMembers
  };
  int next_id = 1;
  std::vector<Known> sets;          // by id, without the world
  std::map<int, std::string> gone;  // why sets of worlds before are not there; of this rank alone
};

class ProcessSets {
 public:
  // With the world as set 0.
  ProcessSets(int rank, int world_size);
  // Of a world that follows another. `known`: what each of its ranks knew there; nothing of one
  // that was not there. Sets keep their numbers, and have those members that are still there. What
  // not all knew has been added or removed while that world broke, and is gone.
  ProcessSets(int rank, const std::vector<std::optional<KnownSets>>& known);

  [[nodiscard]] KnownSets known() const;
  // The same, once the world has broken: no set is added or removed any more.
  [[nodiscard]] KnownSets hand_over();
  // The same for a world that is to take the place of one that is whole, until take_back(), where
  // it is not formed after all. Sets are added and removed meanwhile as before: other ranks may
  // have done so before they offered theirs. But whoever asked for it may not be told before it is
  // known which world goes on, for the next one could give the number to another set.
  [[nodiscard]] KnownSets offer();
  void take_back();

  // Null when there is no such set (any more).
  [[nodiscard]] std::shared_ptr<const ProcessSetMembers> find(int id) const;
  // Says so.
  [[nodiscard]] Status missing(int id) const;
  [[nodiscard]] std::vector<int> ids() const;

  // `ranks` are those that all ranks have agreed on. Whether they can be added, and the number that
  // they get, follow from what all ranks know: not from sets that only their members know.
  // `was_offered`, here and in remove(): set to whether this was done between offer() and
  // take_back().
  Expected<std::shared_ptr<const ProcessSetMembers>> add(const std::vector<int>& ranks,
                                                         bool* was_offered = nullptr);
  // The same for a set that only its members know, under a number that they have agreed on among
  // themselves and that was never used before: first_formed or above, in a slot where no member has
  // another such set.
  Expected<std::shared_ptr<const ProcessSetMembers>> form(int id, const std::vector<int>& ranks);
  Status remove(int id, bool* was_offered = nullptr);
  // This rank cannot form the set of that number, and does not try again.
  void give_up(int id);
  // Whether the set existed once, or never will: a message for it is then not early.
  [[nodiscard]] bool existed(int id) const;

 private:
  enum class Kind : std::uint8_t { added, formed };

  static Kind kind_of(int id);
  // Why no set is added or removed at present; ok where they are.
  [[nodiscard]] Status refusal() const;
  [[nodiscard]] KnownSets known_locked() const;
  [[nodiscard]] Status missing_locked(int id) const;
  void inherit(KnownSets::Known set, const std::vector<std::optional<KnownSets>>& known);
  [[nodiscard]] std::size_t count(Kind kind) const;
  Expected<std::shared_ptr<ProcessSetMembers>> members_of(const std::vector<int>& ranks,
                                                          Kind kind) const;
  [[nodiscard]] bool is_slot_taken(int id) const;

  int rank_;
  int world_size_;
  mutable std::mutex mutex_;
  int next_id_ = 0;
  bool is_handed_over_ = false;
  bool is_offered_ = false;
  std::map<int, std::shared_ptr<const ProcessSetMembers>> sets_;
  std::map<int, std::string> gone_;  // see KnownSets
  std::set<int> formed_;             // agreed on by members, also where the set is gone or given up
};

// Batches that were negotiated, those that are replayed, and those on GPUs: each are numbered in an
// order that is the same on all ranks, but not relative to each other.
enum class BatchOrder : std::uint8_t { negotiated, replayed, on_gpu };
inline constexpr int batch_orders = 3;

static_assert(first_formed + (group_generations - 1L) * process_set_limit + process_set_limit - 1 <=
              std::numeric_limits<int>::max());
// Of the `sequence`-th batch of a set.
[[nodiscard]] constexpr Tag batch_tag(int set_id, BatchOrder order, std::uint64_t sequence) {
  return {.group = set_id, .stream = static_cast<std::uint32_t>(order), .sequence = sequence};
}

// Of the `sequence`-th point-to-point message that a rank receives.
[[nodiscard]] constexpr Tag message_tag(std::uint64_t sequence) {
  return {.group = messages_group, .sequence = sequence};
}

}  // namespace rueda
