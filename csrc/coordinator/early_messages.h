// What other ranks say in process sets that this one does not know yet. They may have heard earlier
// that all have agreed on a set, or formed it while this one has not come to that.
//
// What can come early follows from what the application does: of sets that all ranks know, those
// that are there at one time, process_set_limit at most; of those that only their members know, as
// many, and what this rank has agreed to form and never has. So many numbers are kept, the latest.
// Of those before them it is still known that something was said, so that such a set ends if it is
// formed after all: its members would wait for ever for what is not there any more.
// Of one set it is what its members have handed in meanwhile, some hundred bytes for each operation
// at most, and they wait for this rank: a limit on all of it is there for what is no such thing.
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
  // What a message takes: the vector of them may have twice the room that it needs, and a payload
  // is a piece of the heap.
  static constexpr std::size_t cost_of(std::size_t payload) {
    return payload + 2 * sizeof(Message) + 32;
  }
  struct Kept {
    std::vector<Message> messages;
    std::size_t bytes = 0;
    bool is_overfull = false;  // there was more: nothing is kept of it any more, or of so many sets
  };

  // Returns how many messages were dropped for it, of this set or another.
  std::size_t keep(int set_id, int peer, std::span<const std::byte> payload);
  // What has come for the set, in order. Forgets it.
  Kept take(int set_id);

  [[nodiscard]] std::size_t sets() const { return sets_.size(); }
  // As cost_of() counts them.
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
  std::deque<int> evictions_;  // in order; some may have been taken since
};

}  // namespace rueda
