// Which process sets exist. Those that all ranks know are changed by the owner of the progress
// lock, in the same order on every rank; any thread may read.
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
#include "coordinator/set_timeout.h"
#include "core/status.h"
#include "plan/set_slots.h"
#include "rueda/rueda.h"
#include "transport/tag.h"

namespace rueda {

struct ProcessSetMembers {
  int id = 0;
  std::vector<int> ranks;        // world ranks, sorted; none if all of them are lost
  int rank = -1;                 // of this process within the set; or -1
  std::uint64_t definition = 0;  // a hash of the ranks with which it was added, in whichever world
  std::shared_ptr<SetTimeout> timeout = std::make_shared<SetTimeout>();

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] bool has(int world_rank) const {
    return std::binary_search(ranks.begin(), ranks.end(), world_rank);
  }
  [[nodiscard]] int world_rank(int member) const { return ranks[static_cast<std::size_t>(member)]; }
  // Nothing for a rank that is not a member.
  [[nodiscard]] std::optional<int> member_of(int world_rank) const;
  // For error messages: "" for the world, which needs no name.
  [[nodiscard]] std::string name() const;
  // Likewise: "which has ranks 0, 2".
  [[nodiscard]] std::string description() const;
};

// ProcessSetMembers::definition of a set added with these ranks, sorted.
[[nodiscard]] std::uint64_t definition_of(const std::vector<int>& ranks);

// What a rank knows of its world's process sets, for the world that follows. Sets that only their
// members know end with their world.
struct KnownSets {
  struct Known {
    int id = 0;
    bool is_member = false;
    std::uint64_t definition = 0;  // see ProcessSetMembers
  };
  int next_id = 1;
  std::vector<Known> sets;          // by id, except the world
  std::map<int, std::string> gone;  // why sets of earlier worlds are gone; of this rank alone
};

class ProcessSets {
 public:
  // With the world as set 0.
  ProcessSets(int rank, int world_size);
  // For a world that follows another. `known`: what each of its ranks knew there; nothing for a
  // rank that was not there. Sets keep their numbers, and those of their members that remain. A set
  // that not all ranks knew was being added or removed when that world broke, and is gone.
  ProcessSets(int rank, const std::vector<std::optional<KnownSets>>& known);

  [[nodiscard]] KnownSets known() const;
  // The same, once the world has broken: from now on no set is added or removed.
  [[nodiscard]] KnownSets hand_over();
  // The same for a world that will replace an intact one, until take_back() if it is not formed
  // after all. Meanwhile sets are added and removed as before: other ranks may have done so before
  // they offered theirs. But the caller may not get its answer before it is known which world
  // continues, since the next one could give the number to another set.
  [[nodiscard]] KnownSets offer();
  void take_back();

  // Null if there is no such set (any more).
  [[nodiscard]] std::shared_ptr<const ProcessSetMembers> find(int id) const;
  // The error for a set that find() does not find.
  [[nodiscard]] Status missing(int id) const;
  [[nodiscard]] std::vector<int> ids() const;

  // Adds a set of `ranks`, which all ranks have agreed on. Whether it can be added, and its number,
  // depend only on what all ranks know, not on sets that only their members know. `was_offered`,
  // here and in remove(): set to whether this happened between offer() and take_back().
  Expected<std::shared_ptr<const ProcessSetMembers>> add(const std::vector<int>& ranks,
                                                         bool* was_offered = nullptr);
  // The same for a set that only its members know, under a number that they have agreed on among
  // themselves and that was never used before: first_formed or above, in a slot in which no member
  // has another such set.
  Expected<std::shared_ptr<const ProcessSetMembers>> form(int id, const std::vector<int>& ranks);
  Status remove(int id, bool* was_offered = nullptr);
  // This rank cannot form the set of that number, and does not try again.
  void give_up(int id);
  // Whether the set existed once, or never will: a message for it is then not early.
  [[nodiscard]] bool existed(int id) const;

 private:
  enum class Kind : std::uint8_t { added, formed };

  static Kind kind_of(int id);
  // Why sets cannot be added or removed at present; ok if they can.
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
  std::set<int> formed_;  // agreed on by members, including sets that are gone or given up
};

// Negotiated batches, replayed ones, and those on GPUs: each kind is numbered in an order that is
// the same on all ranks, but not relative to the other kinds.
enum class BatchOrder : std::uint8_t { negotiated, replayed, on_gpu };
inline constexpr int batch_orders = 3;

static_assert(first_formed + (group_generations - 1L) * process_set_limit + process_set_limit - 1 <=
              std::numeric_limits<int>::max());
// Tag of the `sequence`-th batch of a set.
[[nodiscard]] constexpr Tag batch_tag(int set_id, BatchOrder order, std::uint64_t sequence) {
  return {.group = set_id, .stream = static_cast<std::uint32_t>(order), .sequence = sequence};
}

// Tag of the `sequence`-th point-to-point message that a rank receives.
[[nodiscard]] constexpr Tag message_tag(std::uint64_t sequence) {
  return {.group = messages_group, .sequence = sequence};
}

}  // namespace rueda
