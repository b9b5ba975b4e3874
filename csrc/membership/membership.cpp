#include "membership/membership.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "core/interruption.h"
#include "core/log.h"
#include "core/signals_blocked.h"
#include "core/start_thread.h"
#include "core/strings.h"
#include "core/wait_fd.h"
#include "membership/descriptor_limit.h"
#include "onehost/process_state.h"
#include "plan/rank_list.h"
#include "plan/wire.h"
#include "transport/endpoints.h"

namespace rueda {

namespace {

using namespace std::chrono_literals;

// How long forming a world may take before its members check again who is there.
constexpr Duration forming_timeout = 10s;
constexpr Duration between_interruptions = 100ms;
constexpr Duration between_looks = 5ms;
// Pauses after attempts to form a world in which nobody was lost. They double.
constexpr Duration first_pause = 1ms;
constexpr Duration longest_pause = 200ms;
// How long a rank that cannot enter a world tries, in heartbeats. The others then go on without it.
constexpr double patience = 10;

double milliseconds(Duration duration) {
  return 1e3 * to_seconds(duration);
}

void trace(std::string_view way, int process, std::span<const std::byte> message) {
  if (!is_logged(LogLevel::trace)) return;
  log(LogLevel::trace, way, process, ": ", describe_survivor_message(message));
}

std::string join(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += str(text.empty() ? "" : ", ", number);
  return text;
}

std::map<int, int> identifiers_of(const World& world) {
  std::map<int, int> identifiers;
  for (int rank = 0; rank < world.topology.size; ++rank) {
    if (const int process = world.process_of(rank); process >= 0) identifiers[rank] = process;
  }
  return identifiers;
}

Status cannot_enter(const Status& cause) {
  return Status(ErrorCode::initialization, "this process cannot enter a world with the others")
      .because(cause);
}

// Kinds of messages. The epoch that is being formed, or that has broken, follows the kind.
constexpr std::uint8_t agreement_message = 1;
constexpr std::uint8_t bootstrap_message = 2;

}  // namespace

Membership::Membership(Connections::Settings settings, const World& first, const Options& options,
                       std::string secret, std::uint64_t epoch, Enter enter)
    : process_(settings.rank),
      options_(options),
      first_(first.topology),
      costs_{first.host.costs(), first.links_tried},
      secret_(std::move(secret)),
      enter_(std::move(enter)),
      identifiers_(identifiers_of(first)),
      connections_(
          std::move(settings),
          {[this](int process, std::span<const std::byte> message) { receive(process, message); },
           [this](int process, const Status& cause) { lose(process, cause); }, [] {}}) {
  present_.epoch = epoch;
  present_.members.resize(static_cast<std::size_t>(connections_.size()));
  std::iota(present_.members.begin(), present_.members.end(), 0);
}

Expected<std::unique_ptr<Membership>> Membership::open(Bootstrap& bootstrap, const World& first,
                                                       const Options& options, std::uint64_t epoch,
                                                       Enter enter, Time deadline) {
  grow_descriptor_table(first.topology.local_size);
  auto settings = exchange_endpoints(bootstrap,
                                     {.name = "membership",
                                      .key = "membership",
                                      .protocol = "ruedamem",
                                      .network_timeout = network_timeout(options)},
                                     first.topology.host_of, options.interface, deadline);
  if (!settings) return settings.status();
  std::unique_ptr<Membership> membership(new Membership(
      std::move(settings).value(), first, options, bootstrap.secret(), epoch, std::move(enter)));
  const Status opened = membership->connections_.open();
  if (opened.ok()) {
    const bool is_one_host = first.topology.local_size == first.topology.size;
    first.host.for_each_end([&](int rank, PeerEnd end) {
      if (is_one_host) membership->kills_[rank] = end.kill;
      membership->connections_.watch_end(rank, std::move(end));
    });
  }
  const Status all = bootstrap.agree("membership/open", opened, deadline);
  if (!all.ok()) return all;
  const SignalsBlocked blocked;
  const auto run = [self = membership.get()] { self->run(); };
  if (Status started = start_thread(membership->thread_, run); !started.ok()) return started;
  return membership;
}

Membership::~Membership() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  connections_.wake();
  if (thread_.joinable()) thread_.join();
}

// --- Thread-safe

void Membership::report(std::uint64_t epoch, const Status& reason) {
  log(LogLevel::debug, "epoch ", epoch, " has broken: ", reason.to_string());
  {
    const std::lock_guard lock(mutex_);
    if (!reported_ || epoch > reported_->epoch) reported_ = Report{epoch, reason};
  }
  connections_.wake();
}

Expected<Membership::Change> Membership::await_newer(std::uint64_t epoch, Time deadline) {
  std::unique_lock lock(mutex_);
  const auto is_there = [&] {
    return outcome_ && (!outcome_->ok() || outcome_->value().epoch > epoch);
  };
  while (!is_there()) {
    const Time now = Clock::now();
    if (now >= deadline) {
      return Status(ErrorCode::timeout, "no other world was formed before the deadline")
          .because(unformed_);
    }
    changed_.wait_until(lock, std::min(deadline, now + between_interruptions));
    lock.unlock();
    if (is_interruptible()) look_for_interruption();
    lock.lock();
  }
  return *outcome_;
}

// --- Used only by the thread

void Membership::run() {
  pthread_setname_np(pthread_self(), "rueda-members");
  try {
    work();
  } catch (const std::exception& error) {  // no memory, for example
    conclude(cannot_enter(Status(ErrorCode::initialization, error.what())));
  }
}

void Membership::work() {
  while (pump(std::nullopt)) {
    if (!obstacle_.ok()) {
      conclude(obstacle_);
      break;
    }
    if (!agreement_ && has_report()) begin_agreement(Clock::now());
    if (!agreement_ || !agreement_->decision()) continue;
    if (const auto& decision = *agreement_->decision(); !decision.ok()) {
      conclude(decision.status());
      break;
    }
    form();
  }
}

bool Membership::has_report() {
  const std::lock_guard lock(mutex_);
  return reported_ && reported_->epoch >= present_.epoch;
}

// The world's reason for the loss says more than that the process cannot be reached.
Status Membership::cause_of(int process, const Status& cause) {
  const int rank = rank_of(process);
  {
    const std::lock_guard lock(mutex_);
    if (reported_ && reported_->epoch == present_.epoch && reported_->reason.peer() == rank) {
      return reported_->reason;
    }
  }
  return Status(ErrorCode::peer_lost, first_.describe(process, rank) + " is gone", rank)
      .because(cause);
}

int Membership::rank_of(int process) const {
  return rank_among(present_.members, process);
}

// A process that the world lost for its silence is not waited for again.
void Membership::lose_reported(Time now) {
  const std::lock_guard lock(mutex_);
  if (!reported_ || reported_->epoch != present_.epoch) return;
  const Status& reason = reported_->reason;
  const bool is_silence = reason.details().reason == ErrorReason::unreachable;
  if (!is_silence || reason.peer() < 0) return;
  const int process = present_.members[static_cast<std::size_t>(reason.peer())];
  agreement_->lose(process, Loss::unreachable, reason, now);
}

// Waits for one event, at most until `until`. False once this process leaves.
bool Membership::pump(std::optional<Time> until) {
  constexpr Duration for_ever = 24h;
  Time deadline = until.value_or(Clock::now() + for_ever);
  if (agreement_) {
    if (const auto due = agreement_->next_deadline()) deadline = std::min(deadline, *due);
  }
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return false;
  }
  pumping_ = true;
  if (!connections_.progress()) wait_readable(connections_.wait_fd(), deadline);
  pumping_ = false;
  while (connections_.progress()) continue;
  if (agreement_) {
    look_at_processes(Clock::now());
    agreement_->advance(Clock::now());
  }
  flush();
  const std::lock_guard lock(mutex_);
  return !stopping_;
}

void Membership::look_at_processes(Time now) {
  if (now >= next_look_) {
    next_look_ = now + seconds(options_.heartbeat) / 8;
    for (const auto& [process, identifier] : identifiers_) {
      if (rank_of(process) < 0 || gone_.contains(process) || !is_dumping_core(identifier)) continue;
      lose(process, Status(ErrorCode::peer_lost, "it has crashed and is writing a core dump", -1,
                           {.reason = ErrorReason::ended}));
    }
  }
  // A process that is not runnable has answered by now, but the answer may not have been read.
  while (!agreement_->silent(now).empty() && connections_.progress()) continue;
  for (const int process : agreement_->silent(now)) look_at_silent(process, now);
}

// A stopped process, once continued, must not go on beside the others, and the job would wait for
// it at the end.
void Membership::look_at_silent(int process, Time now) {
  const auto found = identifiers_.find(process);
  if (found == identifiers_.end()) return;
  if (is_runnable(found->second)) return agreement_->excuse(process, now);
  const auto kill = kills_.find(process);
  if (kill == kills_.end() || !is_stopped(found->second) || !kill->second()) return;
  log(LogLevel::warning, first_.describe(process, rank_of(process)),
      " was killed: it is stopped and did not answer");
}

void Membership::flush() {
  for (SurvivorAgreement* agreement : {last_.get(), agreement_.get()}) {
    if (agreement == nullptr) continue;
    for (auto& [member, bytes] : agreement->take_messages()) {
      trace("to process ", member, bytes);
      send(member, agreement_message, 0, bytes);
    }
  }
}

// A rank without descriptors would reach some members and not others, who then would have to choose
// between it and those.
void Membership::begin_agreement(Time now) {
  broken_at_ = now;
  if (Status room = provide_descriptors(first_.local_size); !room.ok()) {
    obstacle_ = cannot_enter(room);
    return;
  }
  agreement_ = std::make_unique<SurvivorAgreement>(
      SurvivorAgreement::Settings{.rank = process_,
                                  .members = present_.members,
                                  .epoch = present_.epoch,
                                  .timeout = seconds(options_.heartbeat),
                                  .min_size = static_cast<int>(options_.min_np),
                                  .was_stopped = was_stopped_,
                                  .is_one_host = !kills_.empty()},
      now);
  next_look_ = {};
  look_at_processes(now);
  lose_gone(now);
  lose_reported(now);
  for (const auto& [process, message] : early_views_[present_.epoch]) {
    agreement_->receive(process, message, now);
  }
  early_views_.erase(early_views_.begin(), early_views_.upper_bound(present_.epoch));
  agreement_->advance(now);
  flush();
}

void Membership::lose_gone(Time now) {
  for (const auto& [process, loss] : gone_) {
    agreement_->lose(process, loss.first, cause_of(process, loss.second), now);
  }
}

void Membership::form() {
  const SurvivorAgreement::Decision decision = agreement_->decision()->value();
  const Time began = Clock::now();
  const Status formed = form_world_of(decision);
  if (!formed.ok()) {
    log(LogLevel::debug, "epoch ", decision.epoch, " was not formed: ", formed.to_string());
    if (stands(decision.epoch).ok()) pause_after(formed, decision.members);
    agreement_->not_formed(decision.epoch, Clock::now());
    lose_gone(Clock::now());
    flush();
    return;
  }
  log(LogLevel::info, "epoch ", decision.epoch, " of processes ", join(decision.members),
      ": agreed on within ", milliseconds(began - broken_at_), ", formed within ",
      milliseconds(Clock::now() - began), " ms");
  pause_ = {};
  fails_since_.reset();
  {
    const std::lock_guard lock(mutex_);
    unformed_ = {};
  }
  agreement_->formed(Clock::now());
  was_stopped_ = agreement_->was_stopped();
  flush();
  last_ = std::move(agreement_);
  present_.epoch = decision.epoch;
  present_.members = decision.members;
  present_.lost.insert(present_.lost.end(), decision.lost.begin(), decision.lost.end());
  early_.erase(early_.begin(), early_.upper_bound(decision.epoch));
  conclude(present_);
}

// Where a rank lacks memory, threads or the like, another attempt would fail in the same way.
void Membership::pause_after(const Status& formed, const std::vector<int>& members) {
  const Time now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    unformed_ = formed;
  }
  const bool is_own = formed.peer() < 0 || formed.peer() == rank_among(members, process_);
  if (!is_own) {
    fails_since_.reset();
  } else if (!fails_since_) {
    fails_since_ = now;
  } else if (now - *fails_since_ > seconds(patience * options_.heartbeat)) {
    obstacle_ = cannot_enter(formed);
    return;
  }
  pause_ = std::clamp(2 * pause_, first_pause, longest_pause);
  while (Clock::now() < now + pause_ && pump(now + pause_)) continue;
}

Status Membership::stands(std::uint64_t epoch) const {
  const auto* const decision = agreement_ ? &agreement_->decision() : nullptr;
  if (decision && *decision && (*decision)->ok() && (*decision)->value().epoch == epoch) return {};
  return Status(ErrorCode::peer_lost, "another member was lost meanwhile");
}

Status Membership::wait_for_members(std::uint64_t epoch, Time deadline) {
  if (Status status = stands(epoch); !status.ok()) return status;
  if (!pump(deadline)) return Status(ErrorCode::shutdown, "this rank has shut down");
  return stands(epoch);
}

Status Membership::form_world_of(const SurvivorAgreement::Decision& decision) {
  const std::uint64_t epoch = decision.epoch;
  MemberBootstrap bootstrap(
      {[this, epoch](int process, const std::vector<std::byte>& message) {
         send(process, bootstrap_message, epoch, message);
       },
       [this, epoch](Time deadline) { return wait_for_members(epoch, deadline); }, secret_},
      decision.members, process_);
  forming_ = {epoch, &bootstrap};
  for (const Early& early : std::exchange(early_[epoch], {})) {
    bootstrap.receive(early.process, early.message);
  }
  Options options = options_;
  options.init_timeout = std::min(options.init_timeout, to_seconds(forming_timeout));
  const MpiCapability no_mpi{nullptr, Status(ErrorCode::unsupported, "a rank was lost")};
  Status formed;
  try {
    // Members may be lost while this one waits for another, and not only over the bootstrap.
    const Interruptible interruptible(
        [this, epoch] {
          if (!pumping_) wait_for_members(epoch, Clock::now()).throw_if_error();
        },
        between_looks);
    auto world = form_world(bootstrap, options, no_mpi, costs_);
    formed = world ? enter_(std::move(world).value(), bootstrap, epoch) : world.status();
  } catch (const Error& error) {
    formed = Status(error.code(), error.what(), error.peer());
  } catch (const std::exception& error) {  // no memory, for example
    formed = Status(ErrorCode::initialization, error.what());
  }
  forming_ = {};
  return formed.ok() ? stands(epoch) : formed;
}

void Membership::conclude(const Expected<Change>& outcome) {
  {
    const std::lock_guard lock(mutex_);
    outcome_ = outcome;
  }
  changed_.notify_all();
}

// --- Messages

void Membership::send(int process, std::uint8_t kind, std::uint64_t epoch,
                      std::span<const std::byte> payload) {
  Writer writer;
  writer.byte(kind);
  writer.unsigned_integer(epoch);
  std::vector<std::byte> message = writer.take();
  message.insert(message.end(), payload.begin(), payload.end());
  connections_.send(process, message);
}

void Membership::receive(int process, std::span<const std::byte> message) {
  Reader reader(message);
  const std::uint8_t kind = reader.byte();
  const std::uint64_t epoch = reader.unsigned_integer();
  if (!reader.ok()) return;
  const auto payload = reader.rest();
  if (kind == agreement_message) return receive_agreement(process, payload);
  if (kind != bootstrap_message) return;
  if (forming_.bootstrap != nullptr && epoch == forming_.epoch) {
    forming_.bootstrap->receive(process, payload);
  } else if (epoch > present_.epoch) {
    early_[epoch].push_back({process, {payload.begin(), payload.end()}});
  }
}

// That an epoch has broken may be news to this process: others may see failures that it cannot, or
// they may have lost it and moved on.
void Membership::receive_agreement(int process, std::span<const std::byte> payload) {
  trace("from process ", process, payload);
  const Time now = Clock::now();
  const auto broken = SurvivorAgreement::epoch_of(payload);
  if (!broken) return;
  // Others may have formed and lost the world that this process is still forming.
  if (*broken > present_.epoch) {
    early_views_[*broken][process].assign(payload.begin(), payload.end());
  }
  if (!agreement_ && *broken >= present_.epoch) begin_agreement(now);
  if (agreement_ && *broken >= present_.epoch) {
    agreement_->receive(process, payload, now);
  } else if (last_) {
    last_->receive(process, payload, now);
  }
}

void Membership::lose(int process, const Status& cause) {
  if (process == process_) {
    obstacle_ = Status(ErrorCode::transport, "this process cannot go on").because(cause);
    return;
  }
  const Loss loss = has_certainly_ended(process, cause) ? Loss::ended : Loss::unreachable;
  if (!gone_.emplace(process, std::pair(loss, cause)).second) return;
  if (!agreement_ || has_done_its_part(process, loss)) return;
  agreement_->lose(process, loss, cause_of(process, cause), Clock::now());
}

// A refused connection says nothing about its process, whose end the world may have seen.
bool Membership::has_certainly_ended(int process, const Status& cause) {
  return cause_of(process, cause).details().reason == ErrorReason::ended ||
         cause.details().reason == ErrorReason::ended;
}

// Whether a process that ends has already let this one enter the world they are forming; a process
// may leave right after recover(). At the barrier that ends enter_(), each has started its runtime
// and is connected, and whatever follows needs nobody else and cannot fail. So that barrier is
// sufficient. The first member has done its part once it has said that all have arrived; without it
// none can leave. Any other member may have heard that already; if it has not, the first one will
// miss it.
bool Membership::has_done_its_part(int process, Loss loss) const {
  if (forming_.bootstrap == nullptr || loss != Loss::ended) return false;
  const MemberBootstrap& bootstrap = *forming_.bootstrap;
  if (!bootstrap.is_last()) return false;
  return bootstrap.is_complete() || (bootstrap.rank() != 0 && !bootstrap.is_first(process));
}

}  // namespace rueda
