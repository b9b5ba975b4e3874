// Operations of a process set that its members negotiate, on this rank: from the submission to the
// answer that all members get. SetCoordinator executes the result.
//
// Used only by the owner of the progress lock.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/batch.h"
#include "coordinator/process_sets.h"
#include "coordinator/submission.h"
#include "core/options.h"
#include "plan/negotiator.h"

namespace rueda {

// What this rank has submitted for negotiation, by name, until the members have answered.
class PendingOperations {
 public:
  [[nodiscard]] bool empty() const { return by_name_.empty(); }
  [[nodiscard]] bool contains(const std::string& name) const { return by_name_.contains(name); }
  [[nodiscard]] bool has_any_on_gpus() const { return on_gpus_ > 0; }
  // Whether it was not submitted by the application, but is a refusal by this rank.
  [[nodiscard]] bool is_refused(const std::string& name) const;
  // Null if it is not pending.
  [[nodiscard]] Submission* find(const std::string& name);
  // The operation and the others of its group.
  [[nodiscard]] std::vector<std::string> names_of(const Request& request) const;
  // Descriptions of everything that the application has submitted, sorted.
  [[nodiscard]] std::set<std::string> descriptions() const;

  // The name must not be pending.
  void add(Submission submission);
  [[nodiscard]] std::optional<Submission> take(const std::string& name);
  [[nodiscard]] std::vector<Submission> take_all();

 private:
  std::unordered_map<std::string, Submission> by_name_;
  std::size_t on_gpus_ = 0;  // of by_name_
};

class SetNegotiation {
 public:
  struct Events {
    // A message for another member (world rank).
    std::function<void(int peer, std::vector<std::byte> message)> send;
    // The members have agreed to add or remove a process set.
    std::function<void(const Response&, Submission)> apply_set_change;
    // Others have waited a long time for `name`, which this rank has not submitted here.
    std::function<void(const std::string& name)> awaited_here;
    // `response` has failed on all members, though not by this rank's refusal; its request carries
    // the refusing rank's error.
    std::function<void(const Response& response)> failed;
    // All members have joined: called before anything else learns of it.
    std::function<void()> joined;
    // This rank is about to negotiate something on GPUs. May be empty.
    std::function<void()> asks_for_gpus;
    // Asks a member (world rank) where its application is, see hear_whereabouts(). May be empty.
    std::function<void(int peer)> ask_whereabouts;
  };

  // Keeps a reference to `members`.
  SetNegotiation(const ProcessSetMembers& members, const Options& options,
                 const ExecutionContext& context, Events events);
  SetNegotiation(const SetNegotiation&) = delete;
  SetNegotiation& operator=(const SetNegotiation&) = delete;

  // --- Requests of this rank

  // Submits an operation or a whole group. None of the names may be pending.
  void submit(std::vector<Submission> submissions, Time now);
  // Submits what was meant to be replayed, but will not be.
  void submit_again(std::vector<Submission> submissions);
  // The application has submitted the name again: if it is pending, it fails on all ranks, unless
  // it was agreed on already.
  void amend(const std::string& name, const Status& error);
  // Takes the handle that completes once all members have joined. False: the set has ended or this
  // rank is joining already, as the handle then says.
  bool prepare_to_join(OpenHandle handle);
  void join();
  // Returns whether the others must learn of it.
  bool leave(Leaving how);

  [[nodiscard]] const PendingOperations& pending() const { return pending_; }
  // Whether an answer from the others is expected.
  [[nodiscard]] bool waits() const { return !pending_.empty() || join_handle_; }

  // --- Messages from members

  void receive(int member, std::span<const std::byte> message, Time now);
  void hear_whereabouts(int member, std::string text, Time now);
  // This rank can no longer follow the others.
  void break_off(const std::string& why);
  void send(int member, std::vector<std::byte> message) const;

  // Whether flush() has anything to do.
  [[nodiscard]] bool is_due(Time now) const {
    return changed_ || (deadline_ && now >= *deadline_) || timeouts_ != members_.timeout->changes();
  }
  [[nodiscard]] bool has_changed() const { return changed_; }
  [[nodiscard]] std::optional<Time> deadline() const { return deadline_; }
  // A batch has ended: what was held back for fusion may go.
  void hear_of_room() { changed_ = changed_ || negotiator_.holds_back(); }
  // Sends what is new, and returns what has been agreed on, in order. `load`: what is in flight.
  [[nodiscard]] std::vector<ResponseList> flush(const Load& load, Time now);
  // After the result has been taken and answered: sets when to flush even if nothing happens.
  void set_deadline() { deadline_ = negotiator_.next_deadline(); }

  // --- What has been agreed on

  // Takes a batch to be executed.
  [[nodiscard]] std::vector<BatchMember> take(const ResponseList& responses,
                                              const std::vector<std::size_t>& batch);
  // Everything else, except a member's leaving: completes the application's handles.
  void answer(const Response& response, Time now);

  // --- The end

  // Why nothing more can be agreed on; ok while it can.
  [[nodiscard]] const Status& closed() const { return negotiator_.closed(); }
  // Takes what was held for replay and ends with the set: fails it now if its name is pending.
  void take_over(Submission submission, const Status& reason);
  // The set has ended for this rank, whatever the others know.
  void give_up(const Status& reason);
  // Fails everything pending.
  void close(const Status& reason);

 private:
  std::optional<Submission> take(const std::string& name);
  void answer_agreed(const Response& response, Time now);
  void warn(const Response& response, Time now);
  void fail_pending(const Response& response, Time now);
  void end_join(const Response& response);

  const ProcessSetMembers& members_;
  const int patient_warnings_;  // this many are attributed to slowness, not to a mistake
  const ExecutionContext context_;
  const Events events_;
  Negotiator negotiator_;
  PendingOperations pending_;
  std::unordered_map<std::string, int> warnings_;  // per name that only other ranks have submitted
  OpenHandle join_handle_;
  int next_persistent_ = 0;
  bool changed_ = false;  // since the last flush
  std::optional<Time> deadline_;
  unsigned timeouts_ = 0;  // how many changes of the set's timeout have been heeded
};

}  // namespace rueda
