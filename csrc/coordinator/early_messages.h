// Messages for process sets that this rank does not know yet. Other ranks may learn earlier that
// all have agreed on a set, or may form it before this rank does.
//
// How much can legitimately arrive early: of sets that all ranks know, those that exist at one
// time, process_set_limit at most; of sets that only their members know, as many again, including
// those that this rank agreed to form and never did. The latest such numbers are kept. Older ones
// are only remembered: if such a set is formed after all it ends at once, because its members would
// wait forever for messages that are gone. One set's messages are what its members submit
// meanwhile, at most some hundred bytes per operation while they wait for this rank; the total
// limit is there for anything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "rueda/rueda.h"

namespace rueda {

class EarlyMessages {
 public:
  static constexpr std::size_t max_sets = 2 * process_set_limit;
  static constexpr std::size_t max_evicted = 16 * max_sets;
  static constexpr std::size_t max_bytes = 64 << 20;

  struct Message {
    int peer = 0;
    std::vector<std::byte> payload;
  };
  // Memory that a message uses: the vector may have twice the capacity that it needs, and a payload
  // is a heap allocation.
  static constexpr std::size_t cost_of(std::size_t payload) {
    return payload + 2 * sizeof(Message) + 32;
  }
  struct Kept {
    std::vector<Message> messages;
    std::size_t bytes = 0;
    bool is_overfull = false;  // messages were dropped, so none are kept
  };

  // Returns how many messages were dropped to make room, of this set or another.
  std::size_t keep(int set_id, int peer, std::span<const std::byte> payload);
  // Removes and returns the messages of the set, in order of arrival.
  Kept take(int set_id);

  [[nodiscard]] std::size_t sets() const { return sets_.size(); }
  // As counted by cost_of().
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Waiting : Kept {
    std::uint64_t since = 0;
  };
  std::size_t make_room_for_set();
  void remember_evicted(int set_id);

  std::map<int, Waiting> sets_;
  std::size_t bytes_ = 0;
  std::uint64_t count_ = 0;  // of sets so far
  std::set<int> evicted_;
  std::deque<int> evictions_;  // oldest first; some may have been taken since
};

}  // namespace rueda
