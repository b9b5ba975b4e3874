// Which process sets exist. Changed by the coordinator thread, in the same order on every rank;
// read by anyone.
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
#include "core/status.h"
#include "plan/set_slots.h"
#include "rueda/rueda.h"
#include "transport/tag.h"

namespace rueda {

struct ProcessSetMembers {
  int id = 0;
  std::vector<int> ranks;  // of the world, sorted
  int rank = -1;           // of this process within the set, or -1

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] bool has(int world_rank) const {
    return std::binary_search(ranks.begin(), ranks.end(), world_rank);
  }
  // For messages: "" for the world, which needs no name.
  [[nodiscard]] std::string name() const;
};

class ProcessSets {
 public:
  // With the world as set 0.
  ProcessSets(int rank, int world_size);

  // Null when there is no such set (any more).
  [[nodiscard]] std::shared_ptr<const ProcessSetMembers> find(int id) const;
  [[nodiscard]] std::vector<int> ids() const;

  // `ranks` are those that all ranks have agreed on. Whether they can be added, and the number that
  // they get, follow from what all ranks know: not from sets that only their members know.
  Expected<std::shared_ptr<const ProcessSetMembers>> add(const std::vector<int>& ranks);
  // The same for a set that only its members know, under a number that they have agreed on among
  // themselves and that was never used before: first_formed or above, in a slot where no member has
  // another such set.
  Expected<std::shared_ptr<const ProcessSetMembers>> form(int id, const std::vector<int>& ranks);
  Status remove(int id);
  // Whether the set existed once: a message for it is then late, not early.
  [[nodiscard]] bool existed(int id) const;

 private:
  enum class Kind : std::uint8_t { added, formed };

  static Kind kind_of(int id);
  [[nodiscard]] std::size_t count(Kind kind) const;
  Expected<std::shared_ptr<ProcessSetMembers>> members_of(const std::vector<int>& ranks,
                                                          Kind kind) const;
  [[nodiscard]] bool is_slot_taken(int id) const;

  int rank_;
  int world_size_;
  mutable std::mutex mutex_;
  int next_id_ = 0;
  std::map<int, std::shared_ptr<const ProcessSetMembers>> sets_;
  std::set<int> formed_;  // numbers that members have agreed on, also of sets that are gone
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
