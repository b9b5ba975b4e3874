// Where the members of a process set on one host agree to do once more what they have agreed on
// before, without a message.
//
// Each plan has a slot with one word: which plan it is, which round of it comes next, how many
// members have joined that round, and whether the plan has been cancelled. The member that
// completes a round enters it into the log, which all read from its beginning, so that all do the
// same in the same order. A member that cannot join a round cancels the plan, for ever: whoever
// had joined its round sees by the word that nothing comes of it.
//
// Of a set that spans hosts, the members on each have a table. There the member that completes a
// round only enters it into the reports, which the member that speaks for the host reads. That one
// decides it when all hosts have agreed (see RoundAgreement). Until then the round is undecided:
// whoever cancels the plan meanwhile has to wait for what is decided.
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

  // Who decides a round: the member that completes it, or all hosts of the set.
  enum class Decided : std::uint8_t { here, by_hosts };

  [[nodiscard]] static std::size_t bytes(int slots);
  // The same for all members, which are those on this host; `memory` is aligned to 64 bytes.
  ReadinessTable(std::byte* memory, int slots, int members, Decided decided = Decided::here);

  // Plans are numbered in the order in which they are given a slot, the same on all members, from
  // 1. A slot may be given to another plan once every member has cancelled its plan, or has heard
  // that another did.
  struct Plan {
    int slot = 0;
    std::uint64_t number = 0;
  };

  enum class Joined : std::uint8_t {
    waiting,    // for others
    completed,  // this member was the last; the log has the entry, or the reports have it
    off,        // the plan is cancelled: this member has not joined
  };
  // `round`: how many rounds of the plan the member has read of in the log.
  [[nodiscard]] Joined join(Plan plan, std::uint64_t round);

  enum class State : std::uint8_t {
    open,
    decided,    // the log has its entry, or is about to
    undecided,  // cancelled, and that may come too late: open, or off, as all hosts decide
    off,        // cancelled, and not decided before
    gone,       // the slot has another plan: off, unless the log says otherwise
  };
  // Of a round that this member has joined.
  [[nodiscard]] State look(Plan plan, std::uint64_t round) const;
  // Of a plan of which it has not joined a round.
  [[nodiscard]] bool is_cancelled(Plan plan) const;

  // Whether the other hosts have to be told. Otherwise they hear of it as this member did; yet they
  // are told if the round is undecided.
  enum class Audience : std::uint8_t { all_hosts, own_host };
  // Returns whether it was not cancelled before.
  bool cancel(Plan plan, Audience audience = Audience::all_hosts);
  // Changes whenever a plan is cancelled.
  [[nodiscard]] std::uint64_t calls_off() const;

  // What is to be executed next, for a member that has read `position` entries; nothing while there
  // is none.
  struct Entry {
    int slot = 0;
    bool with_next = false;  // the next entry is about to come, if it has not, and goes with this
  };
  [[nodiscard]] std::optional<Entry> read(std::uint64_t position) const;

  // --- By the member that speaks for this host

  struct Report {
    Plan plan;
    bool is_complete = false;  // all members here have joined a round that is undecided
    bool is_cancelled = false;
  };
  // What to look at next, for one that has read `position` reports; nothing while there is none.
  // What it says is how things stand now.
  [[nodiscard]] std::optional<Report> read_report(std::uint64_t position) const;
  // The round that all members here have joined goes on all hosts: enters it into the log.
  void decide(Plan plan, bool with_next = false);
  // The plan is cancelled on all hosts.
  void decide_cancelled(Plan plan);

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
  [[nodiscard]] bool is_undecided(const Content& content) const {
    return decided_ == Decided::by_hosts && content.joined == members_;
  }

  // Slots in an order that all members see.
  struct Log {
    Word* tail;
    std::atomic<std::uint64_t>* entries;
    std::uint64_t size;

    void enter(Entry entry) const;
    [[nodiscard]] std::optional<Entry> read(std::uint64_t position) const;
  };

  Word* const calls_off_;
  Word* const words_;
  const Log log_;
  const Log reports_;
  const std::uint64_t members_;
  const Decided decided_;
};

}  // namespace rueda
