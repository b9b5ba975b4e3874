#include "coordinator/runtime.h"

#include <utility>

#include "core/cancellation_off.h"
#include "core/log.h"
#include "core/strings.h"

namespace rueda {

namespace {

Status refusal_of(const MessageRequest& request, const ProcessSets& process_sets, int own_rank) {
  const auto invalid = [&](const auto&... why) {
    return Status(ErrorCode::invalid_argument, str(request.is_send ? "send: " : "recv: ", why...));
  };
  const auto members = process_sets.find(request.set_id);
  if (!members) return invalid(process_sets.missing(request.set_id).message());
  const bool from_anyone = request.peer < 0 && !request.is_send;
  if (members->rank >= 0 && (from_anyone || members->has(request.peer))) return {};
  return invalid("rank ", members->rank < 0 ? own_rank : request.peer,
                 " is not a member of process set ", request.set_id, ", ", members->description());
}

}  // namespace

Runtime::Runtime(World world, const Options& options, LossPolicy on_loss,
                 std::function<void(const Status&)> on_failure, Inheritance inherited)
    : options_(options),
      history_(std::move(inherited.history)),
      chapter_(history_, metrics_),
      timeline_(history_->trace()),
      recorder_(options.flight_recorder, static_cast<std::size_t>(options.flight_recorder_size),
                world.topology.rank, world.topology.size),
      epoch_(
          std::move(world),
          {options_, commands_, metrics_, timeline_, recorder_, long_waits_, std::move(on_failure)},
          on_loss, std::move(inherited.sets)),
      progress_(epoch_, epoch_.layout().host, epoch_.layout().topology.local_size, metrics_),
      sender_(commands_, progress_),
      tables_(sender_, epoch_.process_sets()),
      sets_(sender_, epoch_.process_sets()) {}

Expected<std::unique_ptr<Runtime>> Runtime::start(World world, const Options& options,
                                                  LossPolicy on_loss,
                                                  std::function<void(const Status&)> on_failure,
                                                  Inheritance inherited) {
  const bool is_first = inherited.history == nullptr;
  if (is_first) inherited.history = std::make_shared<History>();
  std::unique_ptr<Runtime> runtime(
      new Runtime(std::move(world), options, on_loss, std::move(on_failure), std::move(inherited)));
  if (is_first) runtime->take_over(0);
  if (Status status = runtime->epoch_.open(); !status.ok()) return status;
  runtime->commands_.open();
  const Epoch::Descriptors descriptors = runtime->epoch_.descriptors();
  Status status = runtime->progress_.start(descriptors.control, descriptors.transport);
  if (!status.ok()) return status;
  return runtime;
}

void Runtime::take_over(std::uint64_t epoch) {
  const TimelineStyle style{
      options_.timeline_format == "horovod" ? TimelineFormat::horovod : TimelineFormat::rueda,
      options_.timeline_cycles == "1"};
  const Status status =
      timeline_.take_over({epoch, topology().rank, topology().size}, options_.timeline, style);
  // The other ranks already have this one in their world: better to lose a trace than a job.
  if (!status.ok()) log(LogLevel::error, status.to_string());
}

Runtime::~Runtime() {
  shutdown();
}

std::unique_ptr<LongWaits::Wait> Runtime::begin_long_wait() {
  auto wait = std::make_unique<LongWaits::Wait>(long_waits_);
  progress_.notify();
  return wait;
}

std::vector<Handle> Runtime::open_handles(std::vector<Submission>& submissions) const {
  std::vector<Handle> handles;
  handles.reserve(submissions.size());
  const Time now = Clock::now();
  for (Submission& submission : submissions) {
    submission.handle = sender_.make_handle();
    submission.submitted_at = now;
    handles.emplace_back(submission.handle.state());
  }
  return handles;
}

std::optional<Command> Runtime::accept(int set_id, std::vector<Submission> submissions,
                                       bool queue) {
  const auto members = process_sets().find(set_id);
  Status refused;
  if (!members) {
    refused = process_sets().missing(set_id);
  } else if (members->rank < 0) {
    refused = Status(ErrorCode::invalid_argument,
                     str("rank ", topology().rank, " is not a member of process set ", set_id, ", ",
                         members->description()));
  }
  Command command;
  command.set_id = set_id;
  command.submissions = std::move(submissions);
  if (refused.ok()) refused = commands_.admit(command, *members, queue);
  if (!refused.ok()) command.refuse(refused);
  if (!refused.ok() || queue) return std::nullopt;
  return command;
}

std::vector<Handle> Runtime::submit(int set_id, std::vector<Submission> submissions) {
  epoch_.prepare(submissions);
  std::vector<Handle> handles = open_handles(submissions);
  accept(set_id, std::move(submissions), true);
  progress_.notify();
  return handles;
}

std::vector<Handle> Runtime::submit_and_wait(int set_id, std::vector<Submission> submissions,
                                             std::optional<Time> deadline) {
  epoch_.prepare(submissions);
  std::vector<Handle> handles;
  const CancellationOff until_released;
  if (progress_.acquire()) {
    handles = open_handles(submissions);
    if (auto command = accept(set_id, std::move(submissions), false)) {
      epoch_.carry_out_now(*std::move(command));
    }
    FutexWake wake = FutexWake::changed;
    for (const Handle& handle : handles) {
      const HandleState::Waiting waiting(*handle.state());
      wake = progress_.drive_until_done(*handle.state(), deadline);
      if (wake != FutexWake::changed) break;
    }
    progress_.release();
    if (wake != FutexWake::changed) return handles;
  } else {
    handles = submit(set_id, std::move(submissions));
  }
  for (const Handle& handle : handles) {
    if (handle.state()->wait(deadline) != FutexWake::changed) break;
  }
  return handles;
}

Runtime::Repetition Runtime::repeat(int set_id, RepeatedCall call,
                                    const std::function<Time()>& begin_to_wait) {
  if (commands_.is_closed(set_id) || !progress_.acquire_idle()) return {};
  RoundAtOnce* const round = epoch_.round_at_once(set_id);
  std::string number;
  const auto join = [&call, round](std::string_view name) {
    call.name = name;
    return round->join(call);
  };
  const bool joined =
      round != nullptr &&
      (call.name.empty() ? commands_.number_if(set_id, number, join) : round->join(call));
  if (!joined) {
    progress_.release_idle();
    return {};
  }
  // After `begin_to_wait`, the memory that the call's name and shape refer to may change; nothing
  // below reads it.
  auto state = RoundAtOnce::Is::open;
  const auto is_over = [&] {
    state = round->finish(call);
    return state != RoundAtOnce::Is::open;
  };
  const bool over = progress_.spin_a_moment(is_over);
  if (state != RoundAtOnce::Is::done) {
    const Time deadline = begin_to_wait();
    if (!over) (void)progress_.yield_a_moment(is_over);
    if (state != RoundAtOnce::Is::done) {
      return {Repetition::Is::begun, wait_for_others(*round, call, deadline)};
    }
  }
  metrics_.driven_by_caller.add(1);
  progress_.release_idle();
  return {Repetition::Is::done};
}

Handle Runtime::wait_for_others(RoundAtOnce& round, const RepeatedCall& call, Time deadline) {
  const CancellationOff until_released;
  progress_.go_on();
  Handle handle;
  try {
    handle = Handle(sender_.make_handle());
    round.hand_in(call, handle.state(), Clock::now());
  } catch (const std::exception& error) {
    // The other ranks rely on the round that this rank has joined.
    epoch_.fail_internal(error);
    progress_.release();
    throw;
  }
  {
    const HandleState::Waiting waiting(*handle.state());
    (void)progress_.drive_until_done(*handle.state(), deadline);
  }
  progress_.release();
  return handle;
}

Handle Runtime::join(int set_id) {
  auto handle = sender_.make_handle();
  const auto members = process_sets().find(set_id);
  if (!members || members->rank < 0) {
    handle->complete(Status(ErrorCode::invalid_argument,
                            str("rank ", topology().rank, " cannot join in process set ", set_id,
                                ": it is not a member")));
    return Handle(handle);
  }
  Command command;
  command.kind = Command::Kind::join;
  command.set_id = set_id;
  command.handle = handle;
  sender_.send(std::move(command));
  return Handle(handle);
}

Handle Runtime::submit_message(MessageRequest request) {
  auto handle = sender_.make_handle();
  if (const Status refused = refusal_of(request, process_sets(), topology().rank); !refused.ok()) {
    handle->complete(refused);
    return Handle(handle);
  }
  request.handle = handle;
  Command command;
  command.kind = Command::Kind::message;
  command.set_id = request.set_id;
  command.message = std::move(request);
  sender_.send(std::move(command));
  return Handle(handle);
}

void Runtime::shutdown() {
  Command command;
  command.kind = Command::Kind::leave;
  stop(std::move(command));
}

void Runtime::abort(const std::string& cause) {
  Command command;
  command.kind = Command::Kind::abort;
  command.cause = cause;
  stop(std::move(command));
}

void Runtime::stop(Command command) {
  const std::lock_guard lock(stop_mutex_);
  if (!progress_.is_running()) return;
  if (command.kind == Command::Kind::leave) {
    commands_.close(Status(ErrorCode::shutdown, "this rank has shut down"));
  }
  sender_.send(std::move(command));
  progress_.join();
}

void Runtime::close_after_fork() {
  progress_.lock()->close();  // waiting here for a handle of the parent drives nothing
  epoch_.close_after_fork();
}

}  // namespace rueda
