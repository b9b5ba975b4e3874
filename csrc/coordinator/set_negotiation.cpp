#include "coordinator/set_negotiation.h"

#include <algorithm>

#include "coordinator/execution.h"
#include "core/in_quotes.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

// A name may be late in one process set because the rank is held up in another: only after half the
// time to a stall is it assumed to have been submitted to the wrong set.
int patient_warnings(const Options& options) {
  if (options.stall_warning <= 0) return 0;  // there will be none
  const double half = options.stall_error > 0 ? options.stall_error / 2 : 5 * options.stall_warning;
  return static_cast<int>(std::min(half / options.stall_warning, 1e6));
}

NegotiatorOptions negotiator_options(const ProcessSetMembers& members, const Options& options,
                                     Timeline* timeline, bool asks_whereabouts) {
  NegotiatorOptions result;
  result.rank = members.rank;
  result.members = members.ranks;
  result.set_name = members.name();
  result.cache_capacity = options.cache_capacity;
  result.fusion_threshold = options.fusion_threshold;
  result.stall_warning = seconds(options.stall_warning);
  result.stall_error = [timeout = members.timeout, usual = seconds(options.stall_error)] {
    return timeout->get(usual);
  };
  result.asks_whereabouts = asks_whereabouts;
  result.is_watched = [timeline] { return timeline->is_open(); };
  result.on_ready = [timeline, &members](const Request& request, std::span<const int> ranks,
                                         Time now) {
    timeline->write([&](TimelineWriter& writer) {
      std::vector<int> world_ranks;
      for (const int rank : ranks) world_ranks.push_back(members.world_rank(rank));
      writer.ready(members.id, request, world_ranks, now);
    });
  };
  return result;
}

// It has been negotiated, and is reported to the application or executed.
void record_answer(const ExecutionContext& context, const std::string& name, Time now) {
  context.timeline->write(
      [&](TimelineWriter& writer) { writer.answered(context.set_id, name, now); });
}

}  // namespace

bool PendingOperations::is_refused(const std::string& name) const {
  if (by_name_.empty()) return false;
  const auto pending = by_name_.find(name);
  return pending != by_name_.end() && pending->second.is_refusal;
}

Submission* PendingOperations::find(const std::string& name) {
  const auto pending = by_name_.find(name);
  return pending == by_name_.end() ? nullptr : &pending->second;
}

std::vector<std::string> PendingOperations::names_of(const Request& request) const {
  std::vector<std::string> names;
  for (const auto& [name, submission] : by_name_) {
    const bool is_of_group = !request.group.empty() && submission.request.group == request.group;
    if (name == request.name || is_of_group) names.push_back(name);
  }
  return names;
}

std::set<std::string> PendingOperations::descriptions() const {
  std::set<std::string> operations;
  for (const auto& [name, submission] : by_name_) {
    if (!submission.is_refusal) operations.insert(describe(submission.request));
  }
  return operations;
}

void PendingOperations::add(Submission submission) {
  if (submission.request.on_gpu) ++on_gpus_;
  std::string name = submission.request.name;
  by_name_.emplace(std::move(name), std::move(submission));
}

std::optional<Submission> PendingOperations::take(const std::string& name) {
  auto node = by_name_.extract(name);
  if (node.empty()) return std::nullopt;
  if (node.mapped().request.on_gpu) --on_gpus_;
  return std::move(node.mapped());
}

std::vector<Submission> PendingOperations::take_all() {
  std::vector<Submission> all;
  for (auto& [name, submission] : by_name_) all.push_back(std::move(submission));
  by_name_.clear();
  on_gpus_ = 0;
  return all;
}

SetNegotiation::SetNegotiation(const ProcessSetMembers& members, const Options& options,
                               const ExecutionContext& context, Events events)
    : members_(members),
      patient_warnings_(patient_warnings(options)),
      context_(context),
      events_(std::move(events)),
      negotiator_(negotiator_options(members, options, context.timeline,
                                     static_cast<bool>(events_.ask_whereabouts))) {}

// --- Requests of this rank

void SetNegotiation::submit(std::vector<Submission> submissions, Time now) {
  changed_ = true;
  const bool on_gpu =
      std::any_of(submissions.begin(), submissions.end(),
                  [](const Submission& submission) { return submission.request.on_gpu; });
  if (on_gpu && events_.asks_for_gpus) events_.asks_for_gpus();
  std::vector<Request> requests;
  for (const Submission& submission : submissions) requests.push_back(submission.request);
  const Status status = negotiator_.submit_group(std::move(requests), now);
  for (Submission& submission : submissions) {
    submission.taken_at = now;
    if (status.ok()) {
      pending_.add(std::move(submission));
    } else {
      context_.complete(submission, status);
    }
  }
}

// An operation submitted again while it was undecided fails on all ranks; if its plan is forgotten,
// the second submission may already be in negotiation.
void SetNegotiation::submit_again(std::vector<Submission> submissions) {
  for (Submission& submission : submissions) {
    if (!submission.duplicate.ok()) submission.request.error = submission.duplicate;
  }
  const auto is_late = [this](const Submission& submission) {
    return pending_.contains(submission.request.name);
  };
  if (std::any_of(submissions.begin(), submissions.end(), is_late)) {
    const Status late(ErrorCode::duplicate_name,
                      str(in_quotes(submissions.front().request.name), " was submitted again"));
    for (const Submission& submission : submissions) context_.complete(submission, late);
    return;
  }
  const Time since = submissions.front().taken_at;
  submit(std::move(submissions), since);
}

void SetNegotiation::amend(const std::string& name, const Status& error) {
  Submission* const pending = pending_.find(name);
  if (pending == nullptr) return;
  negotiator_.amend(name, error);
  pending->duplicate = error;
  changed_ = true;
}

bool SetNegotiation::prepare_to_join(OpenHandle handle) {
  if (!closed().ok() || join_handle_) {
    handle->complete(
        join_handle_ ? Status(ErrorCode::invalid_argument, "join() was called again while joining")
                     : closed());
    return false;
  }
  if (context_.recorder->is_on()) {
    Request request;
    request.name = "join";
    request.collective = Collective::join;
    handle->flight = {context_.recorder,
                      context_.recorder->submit(members_.id, request, Clock::now())};
  }
  join_handle_ = std::move(handle);
  return true;
}

void SetNegotiation::join() {
  negotiator_.join();
  changed_ = true;
}

bool SetNegotiation::leave(Leaving how) {
  const bool is_news = negotiator_.leave(how);
  changed_ = changed_ || is_news;
  return is_news;
}

std::optional<Submission> SetNegotiation::take(const std::string& name) {
  warnings_.erase(name);
  return pending_.take(name);
}

// --- Messages from members

void SetNegotiation::receive(int member, std::span<const std::byte> message, Time now) {
  negotiator_.receive(member, message, now);
  changed_ = true;
}

void SetNegotiation::hear_whereabouts(int member, std::string text, Time now) {
  negotiator_.hear_whereabouts(member, std::move(text), now);
  changed_ = true;
}

void SetNegotiation::break_off(const std::string& why) {
  negotiator_.break_off(why);
  changed_ = true;
}

void SetNegotiation::send(int member, std::vector<std::byte> message) const {
  events_.send(members_.world_rank(member), std::move(message));
}

std::vector<ResponseList> SetNegotiation::flush(const Load& load, Time now) {
  changed_ = false;
  timeouts_ = members_.timeout->changes();
  negotiator_.set_load(load);
  negotiator_.flush(now);
  for (Negotiator::Outgoing& outgoing : negotiator_.take_outgoing()) {
    send(outgoing.peer, std::move(outgoing.message));
  }
  for (const int member : negotiator_.take_questions()) {
    events_.ask_whereabouts(members_.world_rank(member));
  }
  return negotiator_.take_responses();
}

// --- What has been agreed on

std::vector<BatchMember> SetNegotiation::take(const ResponseList& responses,
                                              const std::vector<std::size_t>& batch) {
  std::vector<BatchMember> members;
  for (const std::size_t index : batch) {
    const Response& response = responses[index];
    members.push_back({std::make_shared<const Response>(response), take(response.request.name)});
    if (response.request.collective == Collective::persistent_allreduce) {
      members.back().persistent = next_persistent_++;
    }
  }
  return members;
}

void SetNegotiation::answer(const Response& response, Time now) {
  switch (response.kind) {
    case ResponseKind::execute: return answer_agreed(response, now);
    case ResponseKind::error: return fail_pending(response, now);
    case ResponseKind::warning: return warn(response, now);
    case ResponseKind::joined: return end_join(response);
    case ResponseKind::left: return;
  }
}

void SetNegotiation::answer_agreed(const Response& response, Time now) {
  const std::string& name = response.request.name;
  record_answer(context_, name, now);
  auto submission = take(name);
  if (response.request.collective == Collective::barrier) {
    if (submission) context_.complete_barrier(*submission);
  } else if (response.request.collective == Collective::persistent_allreduce) {
    OperationOutput output;
    output.persistent = next_persistent_++;
    context_.complete(*submission, {}, std::move(output));
  } else {
    // Also if this rank has joined: the process sets are the same everywhere.
    if (!submission) submission.emplace().handle = std::make_shared<HandleState>();
    events_.apply_set_change(response, std::move(*submission));
  }
}

void SetNegotiation::warn(const Response& response, Time now) {
  const std::string& name = response.request.name;
  context_.metrics->stall_warnings.add(1);
  context_.timeline->write([&](TimelineWriter& writer) { writer.stalled(members_.id, name, now); });
  log(LogLevel::warning, response.status.to_string());
  const bool is_late = !pending_.contains(name) && ++warnings_[name] >= patient_warnings_;
  if (is_late) events_.awaited_here(name);
}

void SetNegotiation::fail_pending(const Response& response, Time now) {
  warnings_.erase(response.request.name);
  record_answer(context_, response.request.name, now);
  bool own_refusal = false;
  for (const std::string& name : pending_.names_of(response.request)) {
    record_answer(context_, name, now);
    const Submission submission = *take(name);
    own_refusal = own_refusal || submission.is_refusal;
    context_.complete(submission, response.status);
  }
  if (!own_refusal) events_.failed(response);
}

void SetNegotiation::end_join(const Response& response) {
  OperationOutput output;
  output.last_joined_rank = members_.world_rank(response.rank);
  context_.recorder->begin_anew(members_.id);
  events_.joined();
  if (join_handle_) std::exchange(join_handle_, {})->complete({}, std::move(output));
}

// --- The end

void SetNegotiation::take_over(Submission submission, const Status& reason) {
  if (pending_.contains(submission.request.name)) {  // submitted again, after it was decided
    context_.complete(submission, reason);
  } else {
    pending_.add(std::move(submission));
  }
}

void SetNegotiation::give_up(const Status& reason) {
  deadline_.reset();
  changed_ = false;
  if (closed().ok()) negotiator_.close(reason);
}

void SetNegotiation::close(const Status& reason) {
  for (const Submission& submission : pending_.take_all()) {
    context_.complete(submission, error_of(submission.request, reason));
  }
  if (join_handle_) std::exchange(join_handle_, {})->complete(reason);
}

}  // namespace rueda
