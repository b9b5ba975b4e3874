// How the members of a process set on one host agree, without messages, to repeat something they
// have agreed on before.
//
// Each plan has a slot with one word: which plan it is, its next round, how many members have
// joined that round, and whether the plan is cancelled. The member that completes a round enters it
// into the log. All members read the log from its beginning, so all do the same in the same order.
// A member that cannot join a round cancels the plan for good; members that had joined see from the
// word that the round will not happen.
//
// For a set that spans hosts, the members on each host have a table. The member that completes a
// round there only enters it into the reports, which the member that speaks for the host reads.
// That member decides the round once all hosts have agreed (see RoundAgreement). Until then the
// round is undecided, and a member that cancels the plan has to wait for the decision.
//
// The table is in zeroed shared memory. A member joins a round only after reading all earlier
// rounds of the plan, so there are never more unread log entries than slots.
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
  // Arguments are the same for all members, which are those on this host; `memory` is aligned to 64
  // bytes.
  ReadinessTable(std::byte* memory, int slots, int members, Decided decided = Decided::here);

  // Plans are numbered from 1, in the order in which they get slots, the same on all members. A
  // slot may be reused once every member has cancelled its plan or seen that another member did.
  struct Plan {
    int slot = 0;
    std::uint64_t number = 0;
  };

  enum class Joined : std::uint8_t {
    waiting,    // for other members
    completed,  // this member was last; the entry is in the log or the reports
    off,        // the plan is cancelled; this member has not joined
  };
  // `round`: number of the plan's rounds that the member has read in the log.
  [[nodiscard]] Joined join(Plan plan, std::uint64_t round);

  enum class State : std::uint8_t {
    open,
    decided,    // entered into the log, or about to be
    undecided,  // cancelled, perhaps too late: all hosts decide between open and off
    off,        // cancelled before it was decided
    gone,       // the slot has another plan: off, unless the log has the round
  };
  // For a round that this member has joined.
  [[nodiscard]] State look(Plan plan, std::uint64_t round) const;
  // For a plan of which it has not joined a round.
  [[nodiscard]] bool is_cancelled(Plan plan) const;

  // Whether the other hosts must be told of the cancellation. If not, they learn of it the way this
  // member did; they are told anyway if the round is undecided.
  enum class Audience : std::uint8_t { all_hosts, own_host };
  // Returns whether this call cancelled it.
  bool cancel(Plan plan, Audience audience = Audience::all_hosts);
  // Changes whenever a plan is cancelled.
  [[nodiscard]] std::uint64_t calls_off() const;

  // The next thing to execute, for a member that has read `position` entries; nullopt if there is
  // none yet.
  struct Entry {
    int slot = 0;
    bool with_next = false;  // the next entry belongs to it and is here or about to come
  };
  [[nodiscard]] std::optional<Entry> read(std::uint64_t position) const;

  // --- For the member that speaks for this host

  struct Report {
    Plan plan;
    bool is_complete = false;  // all members here have joined an undecided round
    bool is_cancelled = false;
  };
  // What to look at next, for a reader of `position` reports; nullopt if there is none. Reports the
  // current state.
  [[nodiscard]] std::optional<Report> read_report(std::uint64_t position) const;
  // The round that all members here have joined runs on all hosts: enters it into the log.
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

  // Slots, in an order that all members see.
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
