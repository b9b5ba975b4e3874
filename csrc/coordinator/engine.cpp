// The part of the engine that any thread may call.
#include "coordinator/engine.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>

#include "core/log.h"
#include "core/strings.h"
#include "plan/tree.h"

namespace rueda {

namespace {

constexpr int world_fanout = 4;

std::size_t kept_buffers(const Options& options) {
  return static_cast<std::size_t>(options.batches_in_flight) + 1;
}

std::string called(const std::string& name) {
  return name.empty() ? "a tensor without a name" : str("'", name, "'");
}

// Signals are for the application's threads: the main thread of Python must see Ctrl-C.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Of this rank, where the others of its host can reach it.
WakeWord* wake_word_of(const HostGroup& host, WakeWord& own) {
  const auto& memory = host.memory();
  return memory ? &memory->header(memory->rank()).wake : &own;
}

}  // namespace

Engine::Engine(World world, const Options& options)
    : world_(std::move(world)),
      options_(options),
      transport_name_(world_.transport->name()),
      process_sets_(world_.topology.rank, world_.topology.size),
      backend_(make_ring_backend(kept_buffers(options))),
      messages_(world_.host, *world_.transport, *world_.control,
                [this](int peer, std::vector<std::byte> message) {
                  send_message(peer, std::move(message));
                }),
      oversubscribed_(world_.host.memory() ? world_.host.memory()->is_oversubscribed()
                                           : is_oversubscribed(world_.topology.local_size)),
      placement_(world_.host.memory()),
      word_(wake_word_of(world_.host, own_word_)),
      progress_lock_(std::make_shared<ProgressLock>(
          [this](const HandleState& handle, std::optional<Time> deadline) {
            return drive_as_caller(handle, deadline);
          },
          oversubscribed_ ? 20 : 200)) {}

Expected<std::unique_ptr<Engine>> Engine::start(World world, const Options& options) {
  std::unique_ptr<Engine> engine(new Engine(std::move(world), options));
  engine->accepting_ = false;  // nothing to shut down yet
  if (Status status = engine->choose_backend(); !status.ok()) return status;
  const TimelineStyle style{
      options.timeline_format == "horovod" ? TimelineFormat::horovod : TimelineFormat::rueda,
      options.timeline_cycles == "1"};
  if (Status status = engine->timeline_.open(options.timeline, engine->topology().rank, style);
      !options.timeline.empty() && !status.ok()) {
    // The other ranks have this one in their world already: a trace less is better than a job less.
    log(LogLevel::error, status.to_string());
  }
  if (Status status = engine->connect(); !status.ok()) return status;
  engine->open_set(engine->process_sets_.find(0));
  const SignalsBlocked blocked;
  Status watches =
      engine->watcher_.start(engine->world_.control->wait_fd(), engine->world_.transport->wait_fd(),
                             [self = engine.get()] {
                               self->progress_lock_->notify(ProgressLock::readable, *self->word_);
                             });
  if (!watches.ok()) return watches;
  engine->accepting_ = true;
  engine->thread_ = std::thread([self = engine.get()] { self->run(); });
  return engine;
}

Engine::~Engine() {
  shutdown();
}

std::vector<int> Engine::neighbours() const {
  const Tree tree(topology().rank, topology().size, world_fanout);
  std::vector<int> ranks = tree.children();
  if (!tree.is_root()) ranks.push_back(tree.parent());
  return ranks;
}

Status Engine::choose_backend() {
  if (world_.host.memory()) {
    const bool measured = world_.host.costs().exchange > 0;
    if (measured) host_policy_ = policy_of(world_.host.costs());
    host_policy_.huge_pages = options_.huge_pages == "auto";
    algorithms_ = AlgorithmTable::of_limit(static_cast<std::int64_t>(host_policy_.flat_limit));
  }
  auto chosen = AlgorithmTable::parse(options_.algorithm, algorithms_);
  if (!chosen) {
    return Status(ErrorCode::initialization, "RUEDA_ALGORITHM").because(chosen.status());
  }
  algorithms_ = std::move(chosen).value();
  if (world_.host.memory()) {
    backend_ = make_onehost_backend(algorithms_, host_policy_, kept_buffers(options_));
  }
  devices_ = make_device_backend(options_, *backend_);
  return {};
}

Status Engine::connect() {
  world_.control->on_message([this](int peer, std::span<const std::byte> message) {
    receive(peer, message, Clock::now());
  });
  world_.control->on_loss([this](int peer, const Status& cause) { on_peer_lost(peer, cause); });
  const std::vector<int> peers = neighbours();
  return world_.control->connect(peers, Clock::now() + seconds(options_.init_timeout));
}

std::vector<Handle> Engine::open_handles(std::vector<Submission>& submissions) const {
  std::vector<Handle> handles;
  handles.reserve(submissions.size());
  const Time now = Clock::now();
  for (Submission& submission : submissions) {
    submission.handle = std::make_shared<HandleState>(progress_lock_);
    submission.submitted_at = now;
    handles.emplace_back(submission.handle.state());
  }
  return handles;
}

std::optional<Engine::Command> Engine::accept(int set_id, std::vector<Submission> submissions,
                                              bool queue) {
  const auto members = process_sets_.find(set_id);
  Status refused;
  if (!members) {
    refused = Status(ErrorCode::invalid_argument, str("there is no process set ", set_id));
  } else if (members->rank < 0) {
    refused = Status(ErrorCode::invalid_argument,
                     str("rank ", topology().rank, " is not a member of process set ", set_id,
                         ", which has ", describe_ranks(members->ranks)));
  }
  Command command;
  command.set_id = set_id;
  command.submissions = std::move(submissions);
  for (Submission& submission : command.submissions) reserve_room(submission);
  std::unique_lock lock(queue_mutex_);
  if (refused.ok() && !accepting_) refused = refusal_;
  if (!refused.ok()) {
    lock.unlock();
    refuse(command, refused);
    return std::nullopt;
  }
  number_unnamed(set_id, command.submissions);
  for (Submission& submission : command.submissions) {
    Request& request = submission.request;
    // What is wrong with a request here is wrong for everybody: all ranks are told.
    if (request.error.ok()) request.error = validate(request, members->size());
  }
  if (!queue) return command;
  queue_.push_back(std::move(command));
  return std::nullopt;
}

// A rank without room for a process set says so while the others still wait for it to agree.
void Engine::reserve_room(Submission& submission) const {
  const Request& request = submission.request;
  if (request.collective != Collective::add_process_set || !request.error.ok()) return;
  const HostMembers host = world_.host.members({request.splits.begin(), request.splits.end()});
  const bool is_member = host && std::find(host.ranks.begin(), host.ranks.end(),
                                           host.memory->rank()) != host.ranks.end();
  if (!is_member) return;
  submission.room = SetCoordinator::reserve(host);
  if (!submission.room) submission.request.error = no_room();
}

Status Engine::no_room() const {
  return {
      ErrorCode::unsupported,
      str("rank ", topology().rank,
          " has no room for another process set in the memory that the ranks of its host share: "
          "remove sets that are not used any more"),
      topology().rank};
}

// What is wrong with a device travels as a request, as every local error does.
void Engine::mark_streams(std::vector<Submission>& submissions) {
  const Submission* before = nullptr;
  for (Submission& submission : submissions) {
    if (submission.device == host_device || submission.ready || !submission.request.error.ok()) {
      continue;
    }
    if (before != nullptr && before->device == submission.device &&
        before->stream == submission.stream) {
      submission.ready = before->ready;
      continue;
    }
    auto marked = devices_->mark(submission.device, submission.stream);
    if (marked) {
      submission.ready = std::move(marked).value();
      before = &submission;
    } else {
      submission.request.error =
          Status(marked.status().code(),
                 str(called(submission.request.name), " on ", topology().describe(topology().rank)))
              .because(marked.status());
    }
  }
}

std::vector<Handle> Engine::submit(int set_id, std::vector<Submission> submissions) {
  mark_streams(submissions);
  std::vector<Handle> handles = open_handles(submissions);
  accept(set_id, std::move(submissions), true);
  progress_lock_->notify(ProgressLock::queued, *word_);
  return handles;
}

std::vector<Handle> Engine::submit_and_wait(int set_id, std::vector<Submission> submissions,
                                            std::optional<Time> deadline) {
  mark_streams(submissions);
  std::vector<Handle> handles;
  if (progress_lock_->acquire_as_caller()) {
    handles = open_handles(submissions);
    acquire();
    if (auto command = accept(set_id, std::move(submissions), false)) {
      handle_command_now(*std::move(command));
    }
    FutexWake wake = FutexWake::changed;
    for (const Handle& handle : handles) {
      const HandleState::Waiting waiting(*handle.state());
      wake = drive_until_done(*handle.state(), deadline);
      if (wake != FutexWake::changed) break;
    }
    release();
    if (wake != FutexWake::changed) return handles;
  } else {
    handles = submit(set_id, std::move(submissions));
  }
  for (const Handle& handle : handles) {
    if (handle.state()->wait(deadline) != FutexWake::changed) break;
  }
  return handles;
}

// Unnamed operations match by their number within the process set; a group has one number.
void Engine::number_unnamed(int set_id, std::vector<Submission>& submissions) {
  if (!submissions.front().request.name.empty()) return;
  // With the set, lest equal numbers in two sets be taken for one name handed to both.
  const std::string number = str(numbered_prefix, set_id > 0 ? str("set", set_id, ".") : "",
                                 next_unnamed_[set_id]++ % numbers_of_unnamed);
  const bool grouped = submissions.front().request.group_size > 0;
  for (std::size_t i = 0; i < submissions.size(); ++i) {
    Request& request = submissions[i].request;
    request.name = grouped ? str(number, ".", i) : number;
    if (grouped) request.group = number;
  }
}

Handle Engine::join(int set_id) {
  auto handle = std::make_shared<HandleState>(progress_lock_);
  const auto members = process_sets_.find(set_id);
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
  push(std::move(command));
  return Handle(handle);
}

Handle Engine::submit_message(MessageRequest request) {
  auto handle = std::make_shared<HandleState>(progress_lock_);
  request.handle = handle;
  const auto members = process_sets_.find(request.set_id);
  const auto invalid = [&](const auto&... why) {
    handle->complete(
        Status(ErrorCode::invalid_argument, str(request.is_send ? "send: " : "recv: ", why...)));
    return Handle(handle);
  };
  if (!members) return invalid("there is no process set ", request.set_id);
  const std::vector<int>& ranks = members->ranks;
  const auto is_member = [&](int rank) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  };
  if (members->rank < 0 || (request.peer >= 0 && !is_member(request.peer)) ||
      (request.peer < 0 && request.is_send)) {
    return invalid("rank ", members->rank < 0 ? topology().rank : request.peer,
                   " is not a member of process set ", request.set_id, ", which has ",
                   describe_ranks(ranks));
  }
  Command command;
  command.kind = Command::Kind::message;
  command.set_id = request.set_id;
  command.message = std::move(request);
  push(std::move(command));
  return Handle(handle);
}

Status Engine::form_set(int id, const std::vector<int>& ranks) {
  Command command;
  command.kind = Command::Kind::form;
  command.set_id = id;
  command.ranks = ranks;
  command.handle = std::make_shared<HandleState>(progress_lock_);
  const auto handle = command.handle.state();
  push(std::move(command));
  while (handle->wait(std::nullopt) == FutexWake::interrupted) continue;
  return handle->status;
}

Status Engine::dissolve_set(int id) {
  if (id < first_formed) {
    return {ErrorCode::invalid_argument,
            str("process set ", id, " is known to all ranks: use remove_process_set()")};
  }
  if (Status status = process_sets_.remove(id); !status.ok()) return status;
  Command command;
  command.kind = Command::Kind::dissolve;
  command.set_id = id;
  push(std::move(command));
  return {};
}

void Engine::push(Command command) {
  {
    const std::lock_guard lock(queue_mutex_);
    const bool is_operation = command.handle || command.message.handle;
    if (!accepting_ && is_operation) return refuse(command, refusal_);
    queue_.push_back(std::move(command));
  }
  progress_lock_->notify(ProgressLock::queued, *word_);
}

Status Engine::refusal() const {
  const std::lock_guard lock(queue_mutex_);
  return accepting_ ? Status() : refusal_;
}

void Engine::shutdown() {
  const std::lock_guard lock(stop_mutex_);
  if (!thread_.joinable()) return;
  {
    const std::lock_guard queue_lock(queue_mutex_);
    if (accepting_) refusal_ = Status(ErrorCode::shutdown, "this rank has shut down");
    accepting_ = false;
  }
  Command command;
  command.kind = Command::Kind::leave;
  push(std::move(command));
  thread_.join();
}

void Engine::abort(const std::string& cause) {
  const std::lock_guard lock(stop_mutex_);
  if (!thread_.joinable()) return;
  Command command;
  command.kind = Command::Kind::abort;
  command.cause = cause;
  push(std::move(command));
  thread_.join();
}

void Engine::close_after_fork() {
  progress_lock_->close();  // a handle of the parent that is waited for in the child drives nothing
  world_.control->close_after_fork();
  world_.transport->close_after_fork();
}

}  // namespace rueda
