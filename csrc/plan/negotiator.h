// Agrees with the other ranks of a process set on what to do and in which order.
//
// A pure state machine: what a rank submits, the messages it receives and the time go in; messages
// to send and lists of responses come out. It knows no thread, socket or clock, so that tests and
// simulations can drive any number of ranks in any order.
//
// Requests go up a tree (see Tree): a node announces a name to its parent once its whole subtree
// has submitted it (AnnouncedTensors). The root puts complete tensors in order (ReleaseQueue) and
// sends down the responses (ResponseBuilder). Messages between two ranks stay in order, so every
// rank sees the same responses in the same order. All ranks here are ranks within the set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "plan/announced_tensors.h"
#include "plan/crossing_errors.h"
#include "plan/joined_ranks.h"
#include "plan/load.h"
#include "plan/negotiation_message.h"
#include "plan/release_queue.h"
#include "plan/response.h"
#include "plan/response_builder.h"
#include "plan/response_cache.h"
#include "plan/retiring_ranks.h"
#include "plan/set_naming.h"
#include "plan/stall_watch.h"
#include "plan/tree.h"

namespace rueda {

struct NegotiatorOptions {
  int rank = 0;
  std::vector<int> members{0};  // world ranks, for messages; their number is the set's size
  std::string set_name;         // for messages: "" for the world, "process set 2"
  int fanout = negotiation_fanout;
  std::int64_t cache_capacity = 1024;
  std::int64_t fusion_threshold = 64 << 20;  // the root holds back fewer bytes than this
  Duration stall_warning{};                  // zero: never
  std::function<Duration()> stall_error;     // may change at any time; zero or empty: never
  // Whether ranks that are waited for can be asked where they are: see take_questions().
  bool asks_whereabouts = false;
  // Called when ranks of the set turn out to be ready for a request: this one, or all of a child's
  // subtree that have not joined. For observers; must not call back. May be empty. Its arguments
  // cost something to find out, so is_watched is called first.
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
  Negotiator(const Negotiator&) = delete;
  Negotiator& operator=(const Negotiator&) = delete;

  // This rank wants `request` (already validated, or with its error set). Its name must not be
  // pending here. Fails immediately if it is known that it cannot succeed: a rank has left, this
  // rank has joined, or the others gave up waiting for it.
  Status submit(Request request, Time now);
  // The same for a whole group: all of it or nothing.
  Status submit_group(std::vector<Request> requests, Time now);
  // A pending name turns out to be wrong on this rank: it fails on all ranks, unless it has already
  // been agreed on.
  void amend(const std::string& name, const Status& error);
  void join();
  // Returns whether the others need to be told.
  bool leave(Leaving how = Leaving::alone);
  // The set has ended for this rank, whatever the others know: nothing more is agreed on.
  void close(const Status& reason);

  void receive(int peer, std::span<const std::byte> message, Time now);
  // This rank can no longer follow the others: ranks that depend on it are told, and nobody waits
  // for it.
  void break_off(const std::string& why);

  // Up to the fusion threshold, the root holds back ready tensors as the load says, so that they
  // are fused.
  void set_load(const Load& load) { ready_.set_load(load); }

  // Checks for stalls, then turns what has been submitted and received since the last call into
  // messages and responses. One flush after many submissions costs one message.
  void flush(Time now);

  [[nodiscard]] std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  [[nodiscard]] std::vector<ResponseList> take_responses() { return std::exchange(agreed_, {}); }

  // When flush() should be called even if nothing happens; empty while no one waits.
  [[nodiscard]] std::optional<Time> next_deadline() const { return stalls_.next_deadline(); }
  // Not ok once a rank of the set has left, or close() was called.
  [[nodiscard]] const Status& closed() const { return closed_; }
  // The ranks to ask where they are, now that others have long waited for them. Pass their answers
  // to hear_whereabouts(); they go into the report, which waits for them.
  [[nodiscard]] std::vector<int> take_questions() { return stalls_.take_questions(); }
  void hear_whereabouts(int rank, std::string text, Time now) {
    stalls_.hear_whereabouts(rank, std::move(text), now);
  }
  // Whether the root holds back responses. They come with the first flush() that the load allows.
  [[nodiscard]] bool holds_back() const { return !ready_.empty(); }

 private:
  // Submissions and announcements.
  AnnouncedTensors::Tensors::iterator tensor_for(const std::string& name, Time since);
  [[nodiscard]] bool is_watched() const { return options_.on_ready && options_.is_watched(); }
  void receive_up(int child, UpMessage message, Time now);
  void merge(int child, Announcement announcement, Time now);
  void merge_cached(int child, const std::vector<std::uint64_t>& ids, Time now);
  void merge_amendment(int child, const Announcement& announcement);
  void flush_up();

  // Answers.
  void flush_root();
  void send_down(ResponseList list);
  void receive_responses(Reader& reader, std::span<const std::byte> message);
  void resend(const std::vector<std::uint64_t>& ids);
  void apply(ResponseList responses);

  const NegotiatorOptions options_;
  const Tree tree_;
  const Subtrees subtrees_;
  const SetNaming naming_;

  JoinedRanks joined_;
  AnnouncedTensors tensors_;
  CrossingErrors errors_;
  StallWatch stalls_;
  ResponseCache cache_;
  UpMessage up_;  // collected for the next flush
  std::vector<int> leaving_;
  RetiringRanks retiring_;
  Status closed_;
  bool has_left_ = false;  // this rank

  // For the root.
  const ResponseBuilder builder_;
  ReleaseQueue ready_;

  std::vector<Outgoing> outgoing_;
  std::vector<ResponseList> agreed_;
};

}  // namespace rueda
