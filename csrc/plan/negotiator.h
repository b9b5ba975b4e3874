// Agrees with the other ranks of a process set on what to do and in which order.
//
// A pure state machine: what a rank submits, the messages it receives and the time go in; messages
// to send and lists of responses come out. It knows no thread, socket or clock, so that tests and
// simulations can drive any number of ranks in any order.
//
// Requests go up a tree (see Tree): a node announces a name to its parent once its whole subtree
// has submitted it. The root puts what is complete in order and sends it down; streams are ordered,
// so every rank sees the same responses in the same order. All ranks here are ranks within the set.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "plan/inquiry.h"
#include "plan/load.h"
#include "plan/negotiation_message.h"
#include "plan/response.h"
#include "plan/response_cache.h"
#include "plan/tree.h"

namespace rueda {

struct NegotiatorOptions {
  int rank = 0;
  std::vector<int> members{0};  // world ranks, for messages; their number is the size of the set
  std::string set_name;         // for messages: "" for the world, "process set 2"
  int fanout = 4;
  std::int64_t cache_capacity = 1024;
  std::int64_t fusion_threshold = 64 << 20;  // bytes that end the root's holding back
  Duration stall_warning{};                  // zero: never
  Duration stall_error{};                    // zero: never
  // Whether ranks that are waited for can be asked where they are: see take_questions().
  bool asks_whereabouts = false;
  // Told when ranks of the set turn out to be ready for a request: this one, or all of a child's
  // subtree that have not joined. For whoever watches; it must not call back. May be empty. What it
  // is told costs something to find out, so is_watched is asked before.
  std::function<void(const Request& request, std::span<const int> ranks, Time now)> on_ready;
  std::function<bool()> is_watched = [] { return true; };
};

class Negotiator {
 public:
  struct Outgoing {
    int peer;
    std::vector<std::byte> message;
  };

  explicit Negotiator(NegotiatorOptions options);

  // This rank wants `request` (already validated, or with its error set). Its name must not be
  // pending here. Fails at once where it is known that it cannot succeed: a rank has left, this
  // rank has joined, or the others gave up waiting for it.
  Status submit(Request request, Time now);
  // The same for a whole group: all of it or nothing.
  Status submit_group(std::vector<Request> requests, Time now);
  // A pending name turns out to be wrong on this rank: it fails on all, unless it was agreed on
  // already.
  void amend(const std::string& name, const Status& error);
  void join();
  void leave();
  // The set has ended for this rank, whatever the others know: nothing more is agreed on.
  void close(const Status& reason);

  void receive(int peer, std::span<const std::byte> message, Time now);
  // This rank can no longer follow the others: whoever depends on it is told, and nobody waits for
  // it.
  void break_off(const std::string& why);

  // The root holds back what is ready, as the load says, until the fusion threshold: so that it is
  // fused.
  void set_load(const Load& load) { load_ = load; }

  // Checks for stalls, then turns what has been submitted and received since the last call into
  // messages and responses. One flush after many submissions costs one message.
  void flush(Time now);

  [[nodiscard]] std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  [[nodiscard]] std::vector<ResponseList> take_responses() { return std::exchange(agreed_, {}); }

  // When flush() should be called though nothing happens; nothing while no one waits.
  [[nodiscard]] std::optional<Time> next_deadline() const;
  // Not ok once a rank of the set has left, or close() was called.
  [[nodiscard]] const Status& closed() const { return closed_; }
  // The ranks that are to be asked where they are, now that others have waited for them for long.
  // What each says is handed to hear_whereabouts() and goes into the report, which waits for it.
  [[nodiscard]] std::vector<int> take_questions() { return inquiry_.take_questions(); }
  void hear_whereabouts(int rank, std::string text, Time now);
  // Whether the root holds back responses: they come with the first flush() once the load allows
  // it.
  [[nodiscard]] bool holds_back() const { return !ready_.empty(); }

 private:
  // Ranks that have asked for a name in the same way.
  struct Asked {
    Request request;
    std::vector<int> ranks;
    std::vector<int> children;  // of whom the whole subtree asked so, less the entry's `absent`
  };

  // A name that somebody in this subtree has submitted and that has not been answered.
  struct Entry {
    std::vector<Asked> variants;  // of this rank and the complete children
    std::vector<std::pair<int, std::int64_t>> first_extents;
    std::vector<int> absent;  // sorted; ranks below complete children that have joined instead
    std::set<int> complete_children;
    std::map<int, Announcement> partial_children;
    bool self_ready = false;
    bool complete = false;  // this subtree; announced with the next flush
    std::optional<std::uint64_t> announced_id;
    Time since;
    Time next_report;
    bool reported = false;
    bool inquiring = false;  // the report waits for answers
  };
  using Entries = std::map<std::string, Entry>;
  // The groups that an entry belongs to; more than one only where ranks disagree. "" for none.
  using Groups = std::set<std::string>;

  // negotiator_entries.cpp.
  Entries::iterator entry_for(const std::string& name, Time since);
  static Asked& variant_of(Entry& entry, const Request& request);
  void update_complete(Entries::iterator entry);
  void update_complete();
  [[nodiscard]] bool has_joined(int child) const;
  [[nodiscard]] std::vector<int> absent_ranks(const Entry& entry) const;
  [[nodiscard]] std::vector<int> ranks_of(const Entry& entry, const Asked& variant) const;
  [[nodiscard]] std::vector<int> ready_ranks(const Entry& entry) const;
  [[nodiscard]] static Groups groups_of(const Entry& entry);
  [[nodiscard]] Announcement announce(const Entry& entry, bool partial) const;
  // What the caches of all ranks know as exactly this; null where there is nothing.
  [[nodiscard]] const ResponseCache::Entry* cached(const Entry& entry) const;

  // negotiator.cpp: submissions and messages.
  void merge(int child, Announcement announcement, Time now);
  [[nodiscard]] bool is_watched() const { return options_.on_ready && options_.is_watched(); }
  void tell_ready(const Entry& entry, int child, Time now) const;
  // Whether the child sent this before it knew the error that answered it.
  [[nodiscard]] bool was_answered(int child, const Announcement& announcement) const;
  void merge_amendment(int child, const Announcement& announcement);
  void receive_up(int child, UpMessage message, Time now);
  void merge_cached(int child, const std::vector<std::uint64_t>& ids, Time now);
  [[nodiscard]] bool note_joined(int child, const std::vector<int>& ranks);
  void receive_responses(Reader& reader, std::span<const std::byte> message);
  void resend(const std::vector<std::uint64_t>& ids);
  void apply(ResponseList responses);
  // Returns whether this rank had submitted anything that has failed.
  bool apply_error(const Response& response);
  void flush_up();

  // negotiator_root.cpp: decisions and stalls.
  void flush_root();
  void queue_ready(const std::string& name);
  [[nodiscard]] bool may_release() const;
  [[nodiscard]] std::int32_t priority_of(const std::string& name) const;
  [[nodiscard]] std::vector<std::string> take_held();
  [[nodiscard]] ResponseList release();
  [[nodiscard]] ResponseList fail_unfinished_groups() const;
  void send_down(ResponseList list);
  [[nodiscard]] Response respond(const Entry& entry) const;
  // The same error for each of `groups`.
  static void add_error(ResponseList& list, const Response& error, const Groups& groups);
  [[nodiscard]] Status verdict(const std::string& name, const Entry& entry) const;
  [[nodiscard]] Status verdict_on_absent(const std::string& name, const Entry& entry) const;
  [[nodiscard]] Status verdict_on_variants(const std::string& name, const Entry& entry) const;
  void check_stalls(Time now);
  [[nodiscard]] std::vector<int> missing_beside(const std::vector<int>& ready) const;
  [[nodiscard]] bool inquire(Entry& entry, Time now);
  // Adds a warning or errors for what has waited too long.
  void judge(const std::string& name, const Entry& entry, Time now, ResponseList& responses) const;
  [[nodiscard]] Duration report_interval() const;
  [[nodiscard]] Duration stall_timeout() const;
  void report_soon(Entry& entry, Time now);
  [[nodiscard]] Time first_report(Time since) const;
  [[nodiscard]] Time later_report(Time since, Time now) const;

  [[nodiscard]] int world_rank(int set_rank) const;
  [[nodiscard]] std::string describe(const std::vector<int>& set_ranks) const;
  [[nodiscard]] std::string quoted(const std::string& name) const;

  NegotiatorOptions options_;
  Tree tree_;
  std::vector<int> children_;
  std::map<int, std::vector<int>> subtrees_;  // of each child

  Entries pending_;
  std::vector<std::string> newly_complete_;  // in order of completion
  UpMessage up_;                             // collected for the next flush
  ResponseCache cache_;
  Time next_check_ = Time::max();  // no entry is to be reported before

  bool self_joined_ = false;
  std::vector<int> joined_;                  // in this subtree, in order of joining
  std::map<int, std::size_t> joined_below_;  // how many of each child's subtree
  // Numbers that a child has sent, this rank did not know, and the child has not settled yet: as
  // long as there are any, it may have submitted what it does not seem to have.
  std::map<int, std::uint64_t> unresolved_;
  std::vector<int> leaving_;
  Status closed_;
  bool has_left_ = false;  // this rank

  std::uint64_t applied_ = 0;  // lists of responses
  std::map<int, std::uint64_t> child_applied_;
  std::map<std::string, std::uint64_t> failed_at_;  // errors that may cross announcements
  std::map<std::string, Status> missed_;            // what failed before this rank came

  // Root only.
  Load load_;
  std::vector<std::string> ready_;                          // to be released, in order
  std::map<std::string, std::vector<std::string>> groups_;  // complete members of incomplete groups
  Inquiry inquiry_;

  std::vector<Outgoing> outgoing_;
  std::vector<ResponseList> agreed_;
};

}  // namespace rueda
