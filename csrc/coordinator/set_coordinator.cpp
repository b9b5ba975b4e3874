#include "coordinator/set_coordinator.h"

#include <algorithm>
#include <set>

#include "core/earlier.h"
#include "core/in_quotes.h"
#include "core/strings.h"
#include "plan/fusion_plan.h"
#include "plan/stall_watch.h"

namespace rueda {

namespace {

// Whether a response needs execution, beyond telling the application that all have agreed.
bool is_executed(const Response& response) {
  const Request& request = response.request;
  return response.kind == ResponseKind::execute &&
         (request.collective <= Collective::alltoall ||
          (request.collective == Collective::persistent_allreduce && request.on_gpu));
}

// At most this many interrupted operations are listed; the rest are mostly similar.
constexpr std::size_t max_interrupted = 16;

// If submissions of a plan's members pause for this long, they are negotiated: a thread that waits
// for the first ones should not have to wait for the last.
constexpr Duration collecting_pause = std::chrono::milliseconds(2);
constexpr std::int64_t max_plans = 1024;

// A round that others do not join is negotiated early enough for the stall to be reported in time.
Replay::Options replay_options(const ProcessSetMembers& members, const Options& options) {
  Replay::Options result;
  result.plans = static_cast<int>(std::clamp<std::int64_t>(options.cache_capacity, 0, max_plans));
  result.pause = collecting_pause;
  result.fusion_threshold = options.fusion_threshold;
  result.stall = [timeout = members.timeout, warning = seconds(options.stall_warning),
                  usual = seconds(options.stall_error)] {
    return until_first_report(warning, timeout->get(usual)) / 2;
  };
  return result;
}

// Records each submission once, since deferred ones come here again.
void record(const ExecutionContext& context, std::vector<Submission>& submissions) {
  FlightRecorder& recorder = *context.recorder;
  if (!recorder.is_on()) return;
  for (Submission& submission : submissions) {
    FlightEntry& entry = submission.handle->flight;
    if (entry.number != 0 || submission.is_refusal) continue;
    entry = {&recorder,
             recorder.submit(context.set_id, submission.request, submission.submitted_at)};
  }
}

// If the job is then killed, the record shows why.
void record_stall(FlightRecorder& recorder, const ResponseList& responses) {
  const auto stall = std::find_if(responses.begin(), responses.end(), [](const Response& response) {
    return response.kind == ResponseKind::warning ||
           (response.kind == ResponseKind::error && response.status.code() == ErrorCode::stalled);
  });
  if (stall != responses.end()) recorder.dump(FlightRecorder::Occasion::stall, stall->status);
}

void add_reused(const DeferredSubmissions& deferred, std::vector<std::string>& names) {
  const auto reused =
      deferred.names([](const std::string& name) { return is_reused_in_turn(name); });
  names.insert(names.end(), reused.begin(), reused.end());
}

void mark_cycle(Timeline& timeline, Time now) {
  timeline.write([&](TimelineWriter& writer) { writer.cycle(now); });
}

}  // namespace

SetCoordinator::SetCoordinator(std::shared_ptr<const ProcessSetMembers> members,
                               const HostParts& parts, std::unique_ptr<const SetHosts> hosts,
                               const Options& options, const ExecutionContext& context,
                               Transport& transport, Events events,
                               std::shared_ptr<ControlRoom> room)
    : members_(std::move(members)),
      fusion_threshold_(options.fusion_threshold),
      context_(context),
      negotiation_(*members_, options, context_, negotiation_events(std::move(events))),
      replay_(parts, members_, replay_options(*members_, options), *context_.metrics,
              replay_events()),
      batches_(members_, parts, std::move(hosts), options, context, transport, std::move(room)) {}

SetCoordinator::Events SetCoordinator::negotiation_events(Events events) {
  events.joined = [this, tell = std::move(events.joined)] {
    replay_.resume();
    tell();
  };
  // An operation that is being replayed here is not missing.
  events.awaited_here = [this, tell = std::move(events.awaited_here)](const std::string& name) {
    if (!replay_.holds(name)) tell(name);
  };
  events.asks_for_gpus = [this] { replay_.cancel_gpu_rounds(); };
  return events;
}

Replay::Events SetCoordinator::replay_events() {
  Replay::Events events;
  events.negotiate = [this](std::vector<Submission> submissions) {
    negotiation_.submit_again(std::move(submissions));
  };
  events.execute = [this](Replay::Batch& batch, const Contributions& contributions) {
    execute_again(batch, contributions);
  };
  events.may_be_eager = [this](std::size_t bytes) { return batches_.may_be_eager(bytes); };
  events.send = [this](int member, std::vector<std::byte> message) {
    negotiation_.send(member, std::move(message));
  };
  return events;
}

// --- Submission

void SetCoordinator::submit(std::vector<Submission> submissions, Time now,
                            const std::string& free_name) {
  const bool comes_too_late = retired_.ok() && !has_left_ &&
                              closing().code() == ErrorCode::shutdown &&
                              !context_.recorder->is_cut_short(context_.set_id);
  record(context_, submissions);
  // As for operations that were open when another rank left, before they fail. Only the first: a
  // program may go on for long without that rank.
  if (comes_too_late && context_.recorder->is_cut_short(context_.set_id)) {
    context_.recorder->dump(FlightRecorder::Occasion::failure, closing());
  }
  // A submission waits until its name is free: a refusal of the name is unanswered, or its number
  // is used in turn.
  const auto must_wait = [&](const std::string& name) {
    if (is_reused_in_turn(name)) {
      return is_pending(name) || (name != free_name && deferred_.contains(name));
    }
    return negotiation_.pending().is_refused(name);
  };
  for (const Submission& submission : submissions) {
    const std::string& name = submission.request.name;
    if (must_wait(name)) return deferred_.add(name, std::move(submissions));
  }
  context_.metrics->tensors_submitted.add(static_cast<std::int64_t>(submissions.size()));
  if (refuse_duplicates(submissions)) return;
  if (replay_.take(submissions, now, negotiation_.pending().has_any_on_gpus())) return;
  negotiation_.submit(std::move(submissions), now);
}

bool SetCoordinator::submit_deferred(Time now) {
  std::vector<std::string> free;
  if (!deferred_.empty()) {
    free = deferred_.names([this](const std::string& name) { return !is_pending(name); });
  }
  for (const std::string& name : free) {
    // For a name that is used in turn, only the first is submitted: the rest, possibly very many,
    // would only be deferred again. A group is different: one of its names may be free before
    // another, and the submissions behind it must move along, or they would overtake it.
    if (is_reused_in_turn(name) && deferred_.first(name).size() == 1) {
      submit(deferred_.take_first(name), now, name);
      continue;
    }
    for (auto& submissions : deferred_.take(name)) submit(std::move(submissions), now);
  }
  const bool joins = begin_join();
  return begin_leave() || joins || !free.empty();
}

RoundAtOnce* SetCoordinator::at_once() {
  const bool rests = negotiation_.pending().empty() && !negotiation_.has_changed() &&
                     deferred_.empty() && batches_.size() == 0;
  const bool is_seen = context_.recorder->is_on() || context_.timeline->is_open();
  return rests && !is_seen ? &replay_.at_once() : nullptr;
}

// A name that is still pending must not be submitted again: the new submission fails, and so does
// the pending one on all ranks, since it is no longer clear which of the two the other ranks mean.
//
// Names within a group contain numbers, and so differ from each other.
bool SetCoordinator::refuse_duplicates(std::vector<Submission>& submissions) {
  const bool may_repeat = submissions.front().request.group.empty();
  std::set<std::string_view> own;
  const auto duplicate =
      std::find_if(submissions.begin(), submissions.end(), [&](const Submission& submission) {
        const std::string& name = submission.request.name;
        return (may_repeat && submissions.size() > 1 && !own.insert(name).second) ||
               is_pending(name);
      });
  if (duplicate == submissions.end()) return false;
  const std::string name = duplicate->request.name;
  const int world_rank = members_->world_rank(members_->rank);
  const Status error(ErrorCode::duplicate_name,
                     str(in_quotes(name), " was submitted again on rank ", world_rank,
                         " while it was still pending: wait for its handle, or use another name"),
                     world_rank);
  const bool was_held = replay_.holds(name);
  Submission* const decided = replay_.recall(name);
  if (decided != nullptr) decided->duplicate = error;
  // All have agreed on it meanwhile, so the name is free again.
  if (was_held && decided == nullptr && !negotiation_.pending().contains(name)) {
    return refuse_duplicates(submissions);
  }
  negotiation_.amend(name, error);
  for (const Submission& submission : submissions) context_.complete(submission, error);
  return true;
}

void SetCoordinator::join(OpenHandle handle) {
  if (!negotiation_.prepare_to_join(std::move(handle))) return;
  join_waits_ = true;
  begin_join();
}

bool SetCoordinator::begin_join() {
  if (!join_waits_ || !deferred_.empty()) return false;
  replay_.suspend();
  if (replay_.is_undecided()) return false;
  join_waits_ = false;
  negotiation_.join();
  return true;
}

// The others may rely on earlier submissions, including those that wait for names used in turn,
// but not on submissions that wait behind a refusal, which may never be answered.
void SetCoordinator::leave() {
  has_left_ = true;
  if (!retired_.ok()) return;  // the set ends anyway, and not before the other members
  add_reused(deferred_, leave_waits_for_);
  leaving_ = Leaving::alone;
  begin_leave();
}

bool SetCoordinator::begin_leave() {
  const auto is_open = [this](const std::string& name) {
    return is_pending(name) || deferred_.contains(name);
  };
  if (!leaving_) return false;
  const bool waits = std::any_of(leave_waits_for_.begin(), leave_waits_for_.end(), is_open);
  if (waits && leaving_ == Leaving::alone) return false;
  replay_.suspend();
  if (leaving_ == Leaving::with_all) {
    // Operations held for replay must be decided or announced before this rank says that it has
    // announced all. A decided one ends without a response list; what waits for it then continues.
    const auto goes_on_by_itself = [this](const std::string& name) {
      return replay_.holds(name) || (deferred_.contains(name) && !is_pending(name));
    };
    if (replay_.is_undecided()) return false;
    if (std::any_of(leave_waits_for_.begin(), leave_waits_for_.end(), goes_on_by_itself)) {
      return false;
    }
    if (waits) return negotiation_.leave(Leaving::later_with_all);
  }
  negotiation_.leave(*std::exchange(leaving_, std::nullopt));
  leave_waits_for_.clear();
  return true;
}

bool SetCoordinator::receive(int peer, std::span<const std::byte> message, Time now) {
  const auto member = members_->member_of(peer);
  if (!member) return false;
  if (!is_about_rounds(message)) {
    negotiation_.receive(*member, message, now);
  } else if (!replay_.receive(*member, message)) {
    negotiation_.break_off(str("a malformed message about rounds arrived from rank ", peer));
  }
  return true;
}

void SetCoordinator::hear_whereabouts(int peer, std::string text, Time now) {
  const auto member = members_->member_of(peer);
  if (!member || !closing().ok()) return;
  negotiation_.hear_whereabouts(*member, std::move(text), now);
}

// --- Progress

bool SetCoordinator::step(Time now) {
  // First, since rounds decided earlier precede what has been agreed on since.
  bool moved = replay_.step(now, batches_.load());
  moved = advance(now) || moved;
  moved = submit_deferred(now) || moved;
  if (!negotiation_.is_due(now)) return moved;
  for (const ResponseList& responses : negotiation_.flush(batches_.load(), now)) {
    handle(responses, now);
  }
  negotiation_.set_deadline();
  advance(now);
  submit_deferred(now);
  return true;
}

bool SetCoordinator::advance(Time now) {
  const std::size_t before = batches_.size();
  const bool moved = batches_.advance(now);
  if (batches_.size() < before) negotiation_.hear_of_room();
  return moved;
}

std::optional<Time> SetCoordinator::next_deadline() const {
  return earlier(negotiation_.deadline(), replay_.next_deadline());
}

void SetCoordinator::handle(const ResponseList& responses, Time now) {
  for (const Response& response : responses) replay_.forget(response);
  mark_cycle(*context_.timeline, now);
  const std::vector<Fusion> batches = fuse(responses, fusion_threshold_);
  for (const Fusion& fusion : batches) {
    const Response& first = responses[fusion.members.front()];
    if (is_executed(first)) {
      execute(negotiation_.take(responses, fusion.members), BatchOrder::negotiated, now);
    } else if (first.kind == ResponseKind::left) {
      // If ranks wait for one that leaves, their operations have usually diverged before. The
      // record shows what is open; what a plan handed back has failed already.
      if (retired_.ok() && !has_left_ && context_.recorder->is_cut_short(context_.set_id)) {
        context_.recorder->dump(FlightRecorder::Occasion::failure, first.status);
      }
      close(retired_.ok() ? first.status : retired_);
    } else {
      negotiation_.answer(first, now);
    }
  }
  record_stall(*context_.recorder, responses);
  replay_.learn(responses, batches, [this](const std::string& name) { return is_pending(name); });
}

// Executes what the members have agreed on by joining the plan's round.
void SetCoordinator::execute_again(Replay::Batch& batch, const Contributions& contributions) {
  std::vector<BatchMember> members;
  members.reserve(batch.size());
  for (Replay::Member& member : batch) {
    members.push_back({member.response, std::exchange(member.submission, std::nullopt)});
  }
  if (members.front().response->request.collective == Collective::barrier) {
    return context_.complete_barrier(*members.front().submission);
  }
  const Time now = Clock::now();
  mark_cycle(*context_.timeline, now);
  execute(std::move(members), BatchOrder::replayed, now, contributions);
}

void SetCoordinator::execute(std::vector<BatchMember> members, BatchOrder order, Time now,
                             const Contributions& contributions) {
  for (const BatchMember& member : members) {
    const auto& submission = member.submission;
    // The duplicate came too late to fail the operation that it repeats. It fails the next one of
    // that name instead, which ranks that submitted the name later are still waiting for.
    if (submission && !submission->duplicate.ok()) {
      submit(refusal_of(member.response->request.name, submission->duplicate), now);
    }
  }
  batches_.start(std::move(members), order, now, contributions);
}

void SetCoordinator::close(const Status& reason) {
  replay_.close();
  join_waits_ = false;
  leaving_.reset();
  for (const auto& submissions : deferred_.take_all()) {
    for (const Submission& submission : submissions) {
      context_.complete(submission, error_of(submission.request, reason));
    }
  }
  negotiation_.close(reason);
}

void SetCoordinator::retire(const Status& reason) {
  retired_ = reason;
  // Also if this rank is leaving already and waits for what the others may never submit: the set
  // ends once all members have announced everything, and this is this rank's announcement.
  if (!leaving_) add_reused(deferred_, leave_waits_for_);
  leaving_ = Leaving::with_all;
  begin_leave();
}

// --- Failure

void SetCoordinator::fail_all(const Status& reason) {
  const std::string set = members_->name();
  const auto note = [&](const std::string& operation) {
    if (interrupted_.size() == max_interrupted) return;
    interrupted_.push_back(set.empty() ? operation : str(operation, " (", set, ")"));
  };
  for (const std::string& operation : batches_.fail(reason)) note(operation);
  for (Submission& submission : replay_.give_up()) {
    negotiation_.take_over(std::move(submission), reason);
  }
  for (const std::string& operation : negotiation_.pending().descriptions()) note(operation);
  negotiation_.give_up(reason);
  close(reason);
}

}  // namespace rueda
