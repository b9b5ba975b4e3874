// Where the ranks of a process set on one host agree to do once more what they have agreed on
// before, without a message.
//
// Each plan has a slot with one word: which plan it is, which round of it comes next, how many
// members have joined that round, and whether the plan has been cancelled. The member that
// completes a round enters it into the log, which all read from its beginning, so that all do the
// same in the same order. A member that cannot join a round cancels the plan, for ever: whoever
// had joined its round sees by the word that nothing comes of it.
//
// Lies in zeroed shared memory. A member joins a round only after it has read of all earlier rounds
// of the plan, so no more entries of the log are unread anywhere than there are slots.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace rueda {

class ReadinessTable {
 public:
  static constexpr int max_members = 2047;
  static constexpr int max_slots = 1 << 16;

  [[nodiscard]] static std::size_t bytes(int slots);
  // The same for all members; `memory` is aligned to 64 bytes.
  ReadinessTable(std::byte* memory, int slots, int members);

  // Plans are numbered in the order in which they are given a slot, the same on all members, from
  // 1. A slot may be given to another plan once every member has cancelled its plan, or has heard
  // that another did.
  struct Plan {
    int slot = 0;
    std::uint64_t number = 0;
  };

  enum class Joined : std::uint8_t {
    waiting,    // for others
    completed,  // this member was the last; the log has the entry
    off,        // the plan is cancelled: this member has not joined
  };
  // `round`: how many rounds of the plan the member has read of in the log.
  [[nodiscard]] Joined join(Plan plan, std::uint64_t round);

  enum class State : std::uint8_t {
    open,
    decided,  // the log has its entry, or is about to
    off,      // cancelled, and not decided before
    gone,     // the slot has another plan: off, unless the log says otherwise
  };
  // Of a round that this member has joined.
  [[nodiscard]] State look(Plan plan, std::uint64_t round) const;
  // Of a plan of which it has not joined a round.
  [[nodiscard]] bool is_cancelled(Plan plan) const;

  // Returns whether it was not cancelled before.
  bool cancel(Plan plan);
  // Changes whenever a plan is cancelled.
  [[nodiscard]] std::uint64_t calls_off() const;

  // The slot whose plan is to be executed next, for a member that has read `position` entries;
  // nothing while there is none.
  [[nodiscard]] std::optional<int> read(std::uint64_t position) const;

 private:
  struct alignas(64) Word {
    std::atomic<std::uint64_t> value;
  };
  struct Content {
    std::uint64_t plan;
    std::uint64_t round;
    std::uint64_t joined;
    bool off;
  };

  [[nodiscard]] static Content unpack(std::uint64_t value);
  [[nodiscard]] static std::uint64_t pack(const Content& content);
  [[nodiscard]] std::atomic<std::uint64_t>& word(Plan plan) const;
  void enter(int slot);

  Word* const tail_;
  Word* const calls_off_;
  Word* const words_;
  std::atomic<std::uint64_t>* const log_;
  const std::uint64_t log_size_;
  const std::uint64_t members_;
};

}  // namespace rueda
