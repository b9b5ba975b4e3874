#include "coordinator/set_coordinator.h"

#include <algorithm>
#include <set>

#include "core/log.h"
#include "core/strings.h"
#include "plan/fusion_plan.h"

namespace rueda {

namespace {

// A name may be late in one process set because the rank is held up in another: only when half the
// time to a stall has passed is it taken for a name that was handed to the wrong set.
int patient_warnings(const Options& options) {
  if (options.stall_warning <= 0) return 0;  // there will be none
  const double half = options.stall_error > 0 ? options.stall_error / 2 : 5 * options.stall_warning;
  return static_cast<int>(std::min(half / options.stall_warning, 1e6));
}

// Whether more is to be done than to tell the application that all have agreed.
bool is_executed(const Request& request) {
  return request.collective <= Collective::alltoall ||
         (request.collective == Collective::persistent_allreduce && request.on_gpu);
}

// So many are named of what a failure has interrupted; the rest is mostly more of the same.
constexpr std::size_t max_interrupted = 16;

std::string describe(const Request& request) {
  return str(name_of(request.collective), " of '", request.name, "'");
}

// A pause between the submissions of a plan's members after which they are negotiated: those who
// wait for the first ones shall not have to wait for the last.
constexpr Duration collecting_pause = std::chrono::milliseconds(2);
constexpr std::int64_t max_plans = 1024;

// A round that others do not come to is negotiated early enough for the stall to be reported in
// time.
Replay::Options replay_options(const Options& options) {
  Replay::Options result;
  result.plans = static_cast<int>(std::clamp<std::int64_t>(options.cache_capacity, 0, max_plans));
  result.pause = collecting_pause;
  result.fusion_threshold = options.fusion_threshold;
  const double warning = options.stall_warning;
  const double error = options.stall_error;
  result.stall = seconds(
      (warning > 0 && error > 0 ? std::min(warning, error) : std::max({warning, error, 0.0})) / 2);
  return result;
}

}  // namespace

SetCoordinator::SetCoordinator(std::shared_ptr<const ProcessSetMembers> members,
                               const HostParts& parts, std::unique_ptr<const SetHosts> hosts,
                               const Options& options, const ExecutionContext& context,
                               Transport& transport, Events events,
                               std::shared_ptr<ControlRoom> room)
    : members_(std::move(members)),
      fusion_threshold_(options.fusion_threshold),
      patient_warnings_(patient_warnings(options)),
      context_(context),
      events_(std::move(events)),
      negotiator_(negotiator_options(options)),
      replay_(parts, members_, replay_options(options), *context_.metrics, replay_events()),
      batches_(members_, parts, std::move(hosts), options, context, transport, std::move(room)) {}

NegotiatorOptions SetCoordinator::negotiator_options(const Options& options) const {
  NegotiatorOptions result;
  result.rank = members_->rank;
  result.members = members_->ranks;
  result.set_name = members_->name();
  result.cache_capacity = options.cache_capacity;
  result.fusion_threshold = options.fusion_threshold;
  result.stall_warning = seconds(options.stall_warning);
  result.stall_error = seconds(options.stall_error);
  result.asks_whereabouts = static_cast<bool>(events_.ask_whereabouts);
  result.is_watched = [timeline = context_.timeline] { return timeline->is_open(); };
  result.on_ready = [this](const Request& request, std::span<const int> ranks, Time now) {
    context_.timeline->write([&](TimelineWriter& writer) {
      std::vector<int> world_ranks;
      for (const int rank : ranks) {
        world_ranks.push_back(members_->ranks[static_cast<std::size_t>(rank)]);
      }
      writer.ready(members_->id, request, world_ranks, now);
    });
  };
  return result;
}

void SetCoordinator::mark_cycle(Time now) {
  context_.timeline->write([&](TimelineWriter& writer) { writer.cycle(now); });
}

Replay::Events SetCoordinator::replay_events() {
  Replay::Events events;
  events.negotiate = [this](std::vector<Submission> submissions) {
    changed_ = true;
    renegotiate(std::move(submissions));
  };
  events.execute = [this](Replay::Batch& batch, const Contributions& contributions) {
    execute_again(batch, contributions);
  };
  events.may_be_eager = [this](std::size_t bytes) { return batches_.may_be_eager(bytes); };
  events.send = [this](int member, std::vector<std::byte> message) {
    events_.send(members_->ranks[static_cast<std::size_t>(member)], std::move(message));
  };
  return events;
}

// --- Submission

void SetCoordinator::submit(std::vector<Submission> submissions, Time now) {
  record(submissions);
  if (defer(submissions)) return;
  context_.metrics->tensors_submitted.add(static_cast<std::int64_t>(submissions.size()));
  if (refuse_duplicates(submissions)) return;
  if (replay_.take(submissions, now, pending_on_gpus_ > 0)) return;
  changed_ = true;
  submit_group(std::move(submissions), now);
}

bool SetCoordinator::join_at_once(const RepeatedCall& call) {
  const bool rests = pending_.empty() && deferred_.empty() && batches_.size() == 0 && !changed_;
  const bool is_seen = context_.recorder->is_on() || context_.timeline->is_open();
  if (!rests || is_seen || !replay_.join_at_once(call)) return false;
  context_.metrics->tensors_submitted.add(1);
  return true;
}

bool SetCoordinator::finish_at_once(const RepeatedCall& call) {
  const auto bytes = replay_.finish_at_once(call);
  if (!bytes) return false;
  Metrics::PerCollective& counted = context_.metrics->of(Collective::allreduce);
  counted.batches.add(1);
  counted.tensors.add(1);
  counted.tensor_bytes.add(static_cast<std::int64_t>(*bytes));
  counted.transfers.bytes_reduced.add(static_cast<std::int64_t>(*bytes));
  context_.metrics->tensors_completed.add(1);
  return true;
}

// Once each: what was deferred comes again.
void SetCoordinator::record(std::vector<Submission>& submissions) {
  FlightRecorder& recorder = *context_.recorder;
  if (!recorder.is_on()) return;
  for (Submission& submission : submissions) {
    FlightEntry& entry = submission.handle->flight;
    if (entry.number != 0 || submission.is_refusal) continue;
    entry = {&recorder, recorder.submit(members_->id, submission.request, submission.submitted_at)};
  }
}

void SetCoordinator::submit_group(std::vector<Submission> submissions, Time now) {
  const bool on_gpu =
      std::any_of(submissions.begin(), submissions.end(),
                  [](const Submission& submission) { return submission.request.on_gpu; });
  if (on_gpu) replay_.cancel_gpu_rounds();
  std::vector<Request> requests;
  for (const Submission& submission : submissions) requests.push_back(submission.request);
  const Status status = negotiator_.submit_group(std::move(requests), now);
  for (Submission& submission : submissions) {
    submission.taken_at = now;
    if (status.ok()) {
      add_pending(std::move(submission));
    } else {
      finish(std::move(submission), status);
    }
  }
}

// What was submitted again while it was undecided fails on all ranks; where its plan is forgotten,
// the second submission may already be on its way.
void SetCoordinator::renegotiate(std::vector<Submission> submissions) {
  for (Submission& submission : submissions) {
    if (!submission.duplicate.ok()) submission.request.error = submission.duplicate;
  }
  const auto is_late = [this](const Submission& submission) {
    return pending_.contains(submission.request.name);
  };
  if (std::any_of(submissions.begin(), submissions.end(), is_late)) {
    const Status late(ErrorCode::duplicate_name,
                      str("'", submissions.front().request.name, "' was submitted again"));
    for (Submission& submission : submissions) finish(std::move(submission), late);
    return;
  }
  const Time since = submissions.front().taken_at;
  submit_group(std::move(submissions), since);
}

bool SetCoordinator::defer(std::vector<Submission>& submissions) {
  for (const Submission& submission : submissions) {
    if (!must_wait(submission.request.name)) continue;
    auto& waiting = deferred_[submission.request.name];
    waiting.push_back(std::move(submissions));
    return true;
  }
  return false;
}

bool SetCoordinator::must_wait(const std::string& name) const {
  if (name.starts_with(numbered_prefix)) return is_pending(name) || deferred_.contains(name);
  if (pending_.empty()) return false;
  const auto pending = pending_.find(name);
  return pending != pending_.end() && pending->second.is_refusal;
}

bool SetCoordinator::submit_deferred(Time now) {
  std::vector<std::string> free;
  for (const auto& [name, groups] : deferred_) {
    if (!is_pending(name)) free.push_back(name);
  }
  for (const std::string& name : free) {
    auto deferred = deferred_.extract(name);
    // Of one name the first goes, and the others are deferred again, in the same order.
    for (auto& submissions : deferred.mapped()) submit(std::move(submissions), now);
  }
  const bool joins = begin_join();
  return begin_leave() || joins || !free.empty();
}

// A name that is still pending must not be submitted again: the new submission fails, and the
// pending one with it on all ranks, since nobody can tell any more which of the two the others
// mean.
bool SetCoordinator::refuse_duplicates(std::vector<Submission>& submissions) {
  std::set<std::string_view> own;
  const auto duplicate =
      std::find_if(submissions.begin(), submissions.end(), [&](const Submission& submission) {
        const std::string& name = submission.request.name;
        return (submissions.size() > 1 && !own.insert(name).second) || is_pending(name);
      });
  if (duplicate == submissions.end()) return false;
  const std::string name = duplicate->request.name;
  const int world_rank = members_->ranks[static_cast<std::size_t>(members_->rank)];
  const Status error(ErrorCode::duplicate_name,
                     str("'", name, "' was submitted again on rank ", world_rank,
                         " while it was still pending: wait for its handle, or use another name"),
                     world_rank);
  const bool was_held = replay_.holds(name);
  Submission* const decided = replay_.recall(name);
  if (decided != nullptr) decided->duplicate = error;
  // All have agreed on it meanwhile, and the name is free again.
  if (was_held && decided == nullptr && !pending_.contains(name)) {
    return refuse_duplicates(submissions);
  }
  if (const auto pending = pending_.find(name); pending != pending_.end()) {
    negotiator_.amend(name, error);
    pending->second.duplicate = error;
    changed_ = true;
  }
  for (Submission& submission : submissions) finish(std::move(submission), error);
  return true;
}

void SetCoordinator::refuse(const std::string& name, const Status& why, int other_set, Time now) {
  Submission refusal;
  refusal.request.name = name;
  refusal.request.error = why;
  refusal.request.other_set = other_set;
  refusal.handle = std::make_shared<HandleState>();
  refusal.submitted_at = now;
  refusal.is_refusal = true;
  std::vector<Submission> one;
  one.push_back(std::move(refusal));
  submit(std::move(one), now);
}

void SetCoordinator::join(OpenHandle handle) {
  if (!negotiator_.closed().ok() || join_handle_) {
    handle->complete(
        join_handle_ ? Status(ErrorCode::invalid_argument, "join() was called again while joining")
                     : negotiator_.closed());
    return;
  }
  if (context_.recorder->is_on()) {
    Request request;
    request.name = "join";
    request.collective = Collective::join;
    handle->flight = {context_.recorder,
                      context_.recorder->submit(members_->id, request, Clock::now())};
  }
  join_handle_ = std::move(handle);
  join_waits_ = true;
  begin_join();
}

bool SetCoordinator::begin_join() {
  if (!join_waits_ || !deferred_.empty()) return false;
  replay_.suspend();
  if (replay_.is_undecided()) return false;
  join_waits_ = false;
  negotiator_.join();
  changed_ = true;
  return true;
}

// What was submitted before is what the others may count on, also where it waits for its number.
// What waits behind a refusal is not: nothing tells whether that is ever answered.
void SetCoordinator::leave() {
  for (const auto& [name, groups] : deferred_) {
    if (name.starts_with(numbered_prefix)) leave_waits_for_.push_back(name);
  }
  is_leaving_ = true;
  begin_leave();
}

bool SetCoordinator::begin_leave() {
  const auto is_open = [this](const std::string& name) {
    return is_pending(name) || deferred_.contains(name);
  };
  if (!is_leaving_) return false;
  if (std::any_of(leave_waits_for_.begin(), leave_waits_for_.end(), is_open)) return false;
  is_leaving_ = false;
  leave_waits_for_.clear();
  replay_.suspend();
  negotiator_.leave();
  changed_ = true;
  return true;
}

std::optional<int> SetCoordinator::member_of(int peer) const {
  const auto& ranks = members_->ranks;
  const auto found = std::lower_bound(ranks.begin(), ranks.end(), peer);
  if (found == ranks.end() || *found != peer) return std::nullopt;
  return static_cast<int>(found - ranks.begin());
}

void SetCoordinator::receive(int peer, std::span<const std::byte> message, Time now) {
  const auto member = member_of(peer);
  if (!member) return;
  if (is_about_rounds(message)) {
    if (replay_.receive(*member, message)) return;
    negotiator_.break_off(str("a malformed message about rounds arrived from rank ", peer));
  } else {
    negotiator_.receive(*member, message, now);
  }
  changed_ = true;
}

void SetCoordinator::hear_whereabouts(int peer, std::string text, Time now) {
  const auto member = member_of(peer);
  if (!member || closed()) return;
  negotiator_.hear_whereabouts(*member, std::move(text), now);
  changed_ = true;
}

void SetCoordinator::finish(Submission submission, const Status& status, OperationOutput output) {
  (status.ok() ? context_.metrics->tensors_completed : context_.metrics->tensors_failed).add(1);
  submission.handle->complete(status, std::move(output));
}

// --- Progress

bool SetCoordinator::step(Time now) {
  // Before what has been agreed on since: rounds that were decided before come first.
  bool moved = replay_.step(now, batches_.load());
  moved = advance(now) || moved;
  moved = submit_deferred(now) || moved;
  if (!changed_ && !(deadline_ && now >= *deadline_)) return moved;
  changed_ = false;
  negotiator_.set_load(batches_.load());
  negotiator_.flush(now);
  for (Negotiator::Outgoing& outgoing : negotiator_.take_outgoing()) {
    events_.send(members_->ranks[static_cast<std::size_t>(outgoing.peer)],
                 std::move(outgoing.message));
  }
  for (const int member : negotiator_.take_questions()) {
    events_.ask_whereabouts(members_->ranks[static_cast<std::size_t>(member)]);
  }
  for (ResponseList& responses : negotiator_.take_responses()) handle(std::move(responses), now);
  deadline_ = negotiator_.next_deadline();
  advance(now);
  submit_deferred(now);
  return true;
}

bool SetCoordinator::advance(Time now) {
  const std::size_t before = batches_.size();
  const bool moved = batches_.advance(now);
  changed_ = changed_ || (batches_.size() < before && negotiator_.holds_back());
  return moved;
}

std::optional<Time> SetCoordinator::next_deadline() const {
  const auto replay = replay_.next_deadline();
  if (!deadline_ || !replay) return deadline_ ? deadline_ : replay;
  return std::min(*deadline_, *replay);
}

void SetCoordinator::add_pending(Submission submission) {
  if (submission.request.on_gpu) ++pending_on_gpus_;
  std::string name = submission.request.name;
  pending_.emplace(std::move(name), std::move(submission));
}

std::optional<Submission> SetCoordinator::take_pending(const std::string& name) {
  auto node = pending_.extract(name);
  if (node.empty()) return std::nullopt;
  if (node.mapped().request.on_gpu) --pending_on_gpus_;
  return std::move(node.mapped());
}

void SetCoordinator::handle(ResponseList responses, Time now) {
  for (const Response& response : responses) replay_.forget(response);
  mark_cycle(now);
  const std::vector<Fusion> batches = fuse(responses, fusion_threshold_);
  for (const Fusion& fusion : batches) {
    const Response& first = responses[fusion.members.front()];
    if (first.kind == ResponseKind::execute && is_executed(first.request)) {
      execute(responses, fusion.members, now);
    } else {
      answer(first, now);
    }
  }
  record_stall(responses);
  replay_.learn(responses, batches, [this](const std::string& name) { return is_pending(name); });
}

// Whoever then ends the job by force leaves a record of why.
void SetCoordinator::record_stall(const ResponseList& responses) {
  const auto stall = std::find_if(responses.begin(), responses.end(), [](const Response& response) {
    return response.kind == ResponseKind::warning ||
           (response.kind == ResponseKind::error && response.status.code() == ErrorCode::stalled);
  });
  if (stall != responses.end()) context_.recorder->dump(stall->status.to_string());
}

void SetCoordinator::execute(const ResponseList& responses, const std::vector<std::size_t>& batch,
                             Time now) {
  std::vector<BatchMember> members;
  for (const std::size_t index : batch) {
    const Response& response = responses[index];
    const std::string& name = response.request.name;
    warnings_.erase(name);
    members.push_back({std::make_shared<const Response>(response), take_pending(name)});
    if (response.request.collective == Collective::persistent_allreduce) {
      members.back().persistent = next_persistent_++;
    }
  }
  execute(std::move(members), BatchOrder::negotiated, now);
}

// What the members have agreed on by joining the plan's round.
void SetCoordinator::execute_again(Replay::Batch& batch, const Contributions& contributions) {
  std::vector<BatchMember> members;
  members.reserve(batch.size());
  for (Replay::Member& member : batch) {
    members.push_back({member.response, std::exchange(member.submission, std::nullopt)});
  }
  if (members.front().response->request.collective == Collective::barrier) {
    return finish_barrier(*std::move(members.front().submission));
  }
  const Time now = Clock::now();
  mark_cycle(now);
  execute(std::move(members), BatchOrder::replayed, now, contributions);
}

void SetCoordinator::execute(std::vector<BatchMember> members, BatchOrder order, Time now,
                             const Contributions& contributions) {
  for (const BatchMember& member : members) {
    const auto& submission = member.submission;
    // The duplicate came too late to fail the operation that it repeats: it fails the next one of
    // that name instead, for which ranks that submitted it later still wait.
    if (submission && !submission->duplicate.ok()) {
      refuse(member.response->request.name, submission->duplicate, {}, now);
    }
  }
  batches_.start(std::move(members), order, now, contributions);
}

void SetCoordinator::answer(const Response& response, Time now) {
  const std::string& name = response.request.name;
  switch (response.kind) {
    case ResponseKind::execute: {
      record_answer(name, now);
      auto submission = take_pending(name);
      if (response.request.collective == Collective::barrier) {
        if (submission) finish_barrier(*std::move(submission));
      } else if (response.request.collective == Collective::persistent_allreduce) {
        OperationOutput output;
        output.persistent = next_persistent_++;
        finish(std::move(*submission), {}, std::move(output));
      } else {
        // Also where this rank has joined: the process sets are the same everywhere.
        if (!submission) submission.emplace().handle = std::make_shared<HandleState>();
        events_.apply_set_change(response, std::move(*submission));
      }
      return;
    }
    case ResponseKind::error: fail_pending(response, now); return;
    case ResponseKind::warning:
      context_.metrics->stall_warnings.add(1);
      context_.timeline->write(
          [&](TimelineWriter& writer) { writer.stalled(members_->id, name, now); });
      log(LogLevel::warning, response.status.to_string());
      if (!is_pending(name) && ++warnings_[name] >= patient_warnings_) events_.awaited_here(name);
      return;
    case ResponseKind::joined: {
      OperationOutput output;
      output.last_joined_rank = members_->ranks[static_cast<std::size_t>(response.rank)];
      context_.recorder->begin_anew(members_->id);
      events_.joined();
      replay_.resume();
      if (join_handle_) std::exchange(join_handle_, {})->complete({}, std::move(output));
      return;
    }
    case ResponseKind::left: close(retired_.ok() ? response.status : retired_); return;
  }
}

void SetCoordinator::record_answer(const std::string& name, Time now) {
  context_.timeline->write(
      [&](TimelineWriter& writer) { writer.answered(members_->id, name, now); });
}

void SetCoordinator::finish_barrier(Submission submission) {
  Metrics::PerCollective& counted = context_.metrics->of(Collective::barrier);
  counted.tensors.add(1);
  counted.batches.add(1);
  finish(std::move(submission), {});
}

void SetCoordinator::fail_pending(const Response& response, Time now) {
  warnings_.erase(response.request.name);
  const std::string& group = response.request.group;
  std::vector<std::string> names;
  for (const auto& [name, submission] : pending_) {
    if (name == response.request.name || (!group.empty() && submission.request.group == group)) {
      names.push_back(name);
    }
  }
  bool own_refusal = false;
  record_answer(response.request.name, now);
  for (const std::string& name : names) {
    record_answer(name, now);
    Submission submission = *take_pending(name);
    own_refusal = own_refusal || submission.is_refusal;
    finish(std::move(submission), response.status);
  }
  if (!own_refusal) events_.failed(response);
  for (const std::string& name : names) {
    if (auto deferred = deferred_.extract(name)) {
      for (auto& submissions : deferred.mapped()) submit(std::move(submissions), now);
    }
  }
}

void SetCoordinator::close(const Status& reason) {
  replay_.close();
  join_waits_ = false;
  is_leaving_ = false;
  for (auto& [name, groups] : std::exchange(deferred_, {})) {
    for (auto& submissions : groups) {
      for (Submission& submission : submissions) finish(std::move(submission), reason);
    }
  }
  pending_on_gpus_ = 0;
  for (auto& [name, submission] : std::exchange(pending_, {})) {
    const Status status = error_of(describe(submission.request), name, reason);
    finish(std::move(submission), status);
  }
  if (join_handle_) std::exchange(join_handle_, {})->complete(reason);
}

void SetCoordinator::retire(const Status& reason) {
  retired_ = reason;
  leave();
}

// --- Failure

void SetCoordinator::note_interrupted(const std::string& operation) {
  if (interrupted_.size() == max_interrupted) return;
  const std::string set = members_->name();
  interrupted_.push_back(set.empty() ? operation : str(operation, " (", set, ")"));
}

void SetCoordinator::fail_all(const Status& reason) {
  for (const std::string& operation : batches_.fail(reason)) note_interrupted(operation);
  for (Submission& submission : replay_.give_up()) {
    if (pending_.contains(submission.request.name)) {  // submitted again, after it was decided
      finish(std::move(submission), reason);
    } else {
      add_pending(std::move(submission));
    }
  }
  std::set<std::string> open;  // in an order that can be told again
  for (const auto& [name, submission] : pending_) {
    if (!submission.is_refusal) open.insert(describe(submission.request));
  }
  for (const std::string& operation : open) note_interrupted(operation);
  deadline_.reset();
  changed_ = false;
  if (!closed()) negotiator_.close(reason);
  close(reason);
}

}  // namespace rueda
