// A persistent allreduce on one host: in the calling thread, through a channel of its own.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "api/persistent_kinds.h"
#include "coordinator/backoff.h"
#include "core/in_quotes.h"
#include "core/log.h"
#include "core/strings.h"
#include "onehost/host_reduction.h"
#include "onehost/registered_memory.h"
#include "onehost/shared_mapping.h"
#include "reduce/combine.h"

namespace rueda {

namespace {

// How often it checks during a sleep whether the world is broken.
constexpr auto max_sleep = std::chrono::milliseconds(50);
// Polls before it reads the clock or yields the processor: most waits end within a microsecond.
constexpr int first_spins = 100;
constexpr int first_spins_when_oversubscribed = 60;
constexpr Duration spinning = std::chrono::milliseconds(1);
// How long one that is dropped during a run waits for the ranks that take part in it.
constexpr Duration longest_end = std::chrono::seconds(5);

// No process set has such a number.
std::uint64_t channel_key(int set, int number) {
  return (std::uint64_t{1} << 63) | (static_cast<std::uint64_t>(set) << 32) |
         static_cast<std::uint64_t>(number);
}

// The channel serves this tensor alone.
std::size_t slot_for(const HostPolicy& policy, std::size_t bytes) {
  return bytes <= policy.flat_limit ? bytes : 0;
}

// Sizes for which unregistered tensors are fastest through shared memory use a copy there. Larger
// tensors are put on huge pages, which makes access through the kernel faster.
bool prefers_copy(const PersistentTensor& tensor, const HostPolicy& policy) {
  const HostMemory& host = *tensor.host.memory;
  const std::size_t bytes = tensor.bytes();
  if (bytes <= line_bytes || bytes > policy.staged_limit || bytes >= huge_page) return false;
  return !host.registered(tensor.input.data, bytes) || !host.registered(tensor.output, bytes);
}

// Whether the kernel does not let other ranks access the tensor.
bool needs_copy(const PersistentTensor& tensor, const HostPolicy& policy) {
  const HostMemory& host = *tensor.host.memory;
  const std::size_t bytes = tensor.bytes();
  if (bytes <= policy.flat_limit) return false;
  return !host.is_reachable(tensor.input.data, bytes) || !host.is_reachable(tensor.output, bytes);
}

class HostRun final : public PersistentRun {
 public:
  HostRun(const PersistentTensor& tensor, const HostPolicy& policy,
          const ProcessSetMembers& members, int number)
      : life_(tensor),
        transfers_(life_.observe_runs()),
        patience_(patience_of(life_.runtime().options())),
        oversubscribed_(tensor.host.memory->is_oversubscribed()),
        placement_(tensor.host.memory),
        channel_(tensor.host.memory, tensor.host.ranks, members.rank,
                 channel_key(members.id, number), HostChannel::WokenBy::channel,
                 slot_for(policy, tensor.bytes()), tensor.room.get()),
        input_(static_cast<const std::byte*>(tensor.input.data)),
        output_(static_cast<std::byte*>(tensor.output)),
        bytes_(tensor.bytes()),
        copy_(tensor.copy),
        reduction_(channel_, without_staging(policy), combination_of(tensor, members.size()),
                   members.size(),
                   {{copy_ ? copy_.get() : input_, copy_ ? copy_.get() : output_,
                     element_count(tensor.input.shape)}},
                   HostCollective::Begin::later) {
    reduction_.count_in(transfers_);
  }
  ~HostRun() override {
    if (life_.is_in_run()) finish_dropped();
  }
  HostRun(const HostRun&) = delete;
  HostRun& operator=(const HostRun&) = delete;

  void begin(std::optional<void*>) override {
    life_.begin();
    const HostChannel::Visit visit(channel_);
    if (!visit) fail_ended();
    last_move_.reset();
    long_wait_.reset();
    to_copy_back_ = copy_ != nullptr;
    if (copy_) copy(copy_.get(), input_);
    reduction_.start();
    reduction_.advance();
  }

  bool start_until(std::optional<Time>) override { return true; }

  bool done() override {
    if (!reduction_.done()) {
      const HostChannel::Visit visit(channel_);
      if (!visit) fail_ended();
      reduction_.advance();
    }
    if (!reduction_.done()) {
      life_.fail_if_broken();
      const HostChannel::Visit visit(channel_);
      if (!visit) fail_ended();
      fail_if_left();
      note_wait();
    }
    if (!reduction_.done()) return false;
    finish();
    return true;
  }

  bool wait_until(std::optional<Time> deadline) override {
    if (!reduction_.done()) go_on(deadline);
    if (!reduction_.done()) return false;
    finish();
    return true;
  }

 private:
  static Combination combination_of(const PersistentTensor& tensor, int size) {
    const AllreduceOptions& options = tensor.options;
    const int divisor = options.op == ReduceOp::average ? size : 1;
    return {tensor.input.dtype, options.op, options.prescale_factor, divisor,
            options.postscale_factor};
  }

  // The channel has no slots for staging: such tensors have a copy in registered memory instead.
  static HostPolicy without_staging(HostPolicy policy) {
    if (std::exchange(policy.staged_limit, 0) > 0) policy.registered_min = 0;
    return policy;
  }

  // How long a wait is ordinary; after that, a rank may be frozen.
  static Duration patience_of(const Options& options) {
    const bool minds_silence = options.recovery == "on" && options.heartbeat > 0;
    return minds_silence ? seconds(options.heartbeat) / 16 : Duration::max();
  }

  // A failure on this rank is a failure on all, which rely on it.
  void finish() {
    long_wait_.reset();
    life_.end(reduction_.status());
    if (!reduction_.status().ok()) {
      channel_.stop();
      life_.give_up(reduction_.status());
    }
    copy_back();
  }

  // The other ranks count on this one's part, whatever becomes of the result here. Not for long:
  // they may never start the run, or wait for something else of this rank first.
  void finish_dropped() {
    try {
      const HostChannel::Visit visit(channel_);
      if (!visit) fail_ended();
      if (!awaits_who_has_dropped()) {
        advance_until(Clock::now() + longest_end, [this] {
          life_.fail_if_broken();
          fail_if_left();
          return !awaits_who_has_dropped();
        });
      }
      if (!reduction_.done()) return warn_of_drop();
      life_.end(reduction_.status());
      if (reduction_.status().ok()) return;
      channel_.stop();
      life_.give_up(reduction_.status());
    } catch (const std::exception& error) {  // the world has ended, or ends with this
      log(LogLevel::debug, in_quotes(life_.name()), " was dropped during a run: ", error.what());
    }
  }

  // Returns once the run is done, `deadline` has passed, or `look` says no, which is asked after
  // each sleep. Call within a visit.
  template <class Look>
  void advance_until(std::optional<Time> deadline, const Look& look) {
    Backoff backoff(oversubscribed_, spinning, placement_);
    while (!reduction_.done()) {
      const Time now = Clock::now();
      if (reduction_.advance()) {
        backoff.renew();
        last_move_ = now;
      } else if (deadline && now >= *deadline) {
        return;
      } else if (!backoff.back_off(now)) {
        sleep();
        if (!look()) return;
      }
    }
  }

  void warn_of_drop() {
    const std::vector<int> ranks = reduction_.awaited();
    channel_.stop();
    const Status dropped(ErrorCode::shutdown, "it was dropped during the run");
    life_.end(dropped);
    log(LogLevel::warning, in_quotes(life_.name()),
        " was dropped during a run that could not be finished in time: waiting for ",
        describe_ranks(ranks));
  }

  // Once per run, so that what the application writes afterwards stays.
  void copy_back() {
    if (std::exchange(to_copy_back_, false)) copy(output_, copy_.get());
  }

  void copy(std::byte* target, const std::byte* source) {
    copy_bytes(target, source, bytes_, Stores::cached);
    transfers_.bytes_packed.add(static_cast<std::int64_t>(bytes_));
  }

  [[nodiscard]] Runtime& runtime() const { return life_.runtime(); }

  // The world of this rank has ended, so the other ranks' memory must no longer be accessed.
  [[noreturn]] void fail_ended() {
    life_.end(Status(ErrorCode::shutdown, "its world has ended"));
    life_.fail_if_broken();
    throw ShutdownError(str(in_quotes(life_.name()), " cannot continue: its world has ended"));
  }

  void go_on(std::optional<Time> deadline) {
    const HostChannel::Visit visit(channel_);
    if (!visit) fail_ended();
    const int looks = oversubscribed_ ? first_spins_when_oversubscribed : first_spins;
    for (int look = 0; look < looks && !reduction_.done(); ++look) {
      if (!reduction_.advance()) pause_processor();
    }
    if (!reduction_.done()) wait_long(deadline);
  }

  // `last_move_` is kept between several waits for the same run.
  void wait_long(std::optional<Time> deadline) {
    if (!last_move_) last_move_ = Clock::now();
    advance_until(deadline, [this] {
      check();
      note_wait();
      return true;
    });
  }

  // Tells the engine, which knows nothing of this run, once the wait is long.
  void note_wait() {
    if (long_wait_) return;
    const Time now = Clock::now();
    if (!last_move_) last_move_ = now;
    if (now - *last_move_ > patience_) long_wait_ = life_.runtime().begin_long_wait();
  }

  void sleep() {
    Sleeper sleeper(channel_.wake_word());
    if (!reduction_.advance() && !reduction_.done()) sleeper.sleep(Clock::now() + max_sleep);
  }

  // Throws if an awaited rank has left the world cleanly. Call within a visit.
  void fail_if_left() {
    if (!life_.is_departing()) return;
    const auto has_left = [this](int member) {
      const int host_rank = channel_.host_rank(member);
      const HostMemory& host = channel_.host();
      return host.header(host_rank).world_end.load() != 0 || host.has_ended(host_rank);
    };
    if (!awaits_in_vain(has_left)) return;
    channel_.stop();
    life_.fail_departed();
  }

  // Whether a member that takes part in nothing more here is waited for. Call within a visit.
  [[nodiscard]] bool awaits_who_has_dropped() {
    return awaits_in_vain([this](int member) { return channel_.memory().find(member) != nullptr; });
  }

  // Whether one is waited for that has stopped here and of which `has_gone` holds. What it did
  // before is handled first: if that was its part, nobody waits for it.
  template <class HasGone>
  [[nodiscard]] bool awaits_in_vain(const HasGone& has_gone) {
    if (!awaits(has_gone)) return false;
    while (!reduction_.done() && reduction_.advance()) continue;
    return !reduction_.done() && awaits(has_gone);
  }

  template <class HasGone>
  [[nodiscard]] bool awaits(const HasGone& has_gone) const {
    const std::vector<int> awaited = reduction_.awaited();
    for (int member = 0; member < channel_.size(); ++member) {
      // A rank that has not opened its channel yet may still be there, unless it has gone.
      if (!channel_.has_stopped(member) || !has_gone(member)) continue;
      if (channel_.memory().find(member) == nullptr) return true;  // it never will
      if (is_among(awaited, member)) return true;
    }
    return false;
  }

  // `awaited`: world ranks; empty for work that any rank may do.
  [[nodiscard]] bool is_among(const std::vector<int>& awaited, int member) const {
    if (member == channel_.rank()) return false;
    if (awaited.empty()) return !channel_.has_finished(member);
    const int rank = channel_.host().world_rank(channel_.host_rank(member));
    return std::ranges::find(awaited, rank) != awaited.end();
  }

  // Throws if waiting has become pointless.
  void check() {
    if (reduction_.done()) return;
    life_.fail_if_broken();
    fail_if_left();
    if (reduction_.done()) return;
    const double timeout = runtime().options().transfer_timeout;
    if (timeout <= 0 || Clock::now() - *last_move_ < seconds(timeout)) return;
    const std::vector<int> ranks = reduction_.awaited();
    channel_.stop();  // nothing more is accessed in this visit, and no other begins
    life_.give_up(Status(ErrorCode::timeout,
                         str(in_quotes(life_.name()), " has made no progress for ", timeout,
                             " s: waiting for ", describe_ranks(ranks)),
                         ranks.empty() ? -1 : ranks.front()));
  }

  PersistentLife life_;
  TransferCounters& transfers_;
  const Duration patience_;
  const bool oversubscribed_;
  Placement placement_;
  HostChannel channel_;
  const std::byte* const input_;
  std::byte* const output_;
  const std::size_t bytes_;
  const std::shared_ptr<std::byte[]> copy_;
  bool to_copy_back_ = false;
  HostReduction reduction_;
  std::optional<Time> last_move_;  // in this run, once it has been waited for
  std::unique_ptr<LongWaits::Wait> long_wait_;
};

}  // namespace

Status prepare_host_run(PersistentTensor& tensor) {
  const Runtime& runtime = *tensor.runtime;
  const auto members = runtime.process_sets().find(tensor.options.process_set.id);
  if (!members || tensor.input.device != host_device) return {};
  tensor.host = runtime.epoch().layout().host.members(members->ranks);
  if (!tensor.host) return {};
  const auto policy = runtime.epoch().algorithms().host_policy(tensor.bytes());
  if (!policy) return {};
  const int rank = runtime.topology().rank;
  const std::size_t channel = ChannelMemory::bytes_for(slot_for(*policy, tensor.bytes()));
  tensor.room = HostMemory::reserve(tensor.host.memory, {&channel, 1});
  if (!tensor.room) {
    return {ErrorCode::unsupported,
            str("rank ", rank,
                " has no room for another persistent operation in its host's shared memory: "
                "drop operations that are no longer used"),
            rank};
  }
  const bool needed = needs_copy(tensor, *policy);
  if (!needed && !prefers_copy(tensor, *policy)) return {};
  const auto pool = RegisteredMemory::of_process();
  tensor.copy = pool ? pool.value()->allocate(tensor.bytes()) : nullptr;
  if (tensor.copy || !needed) return {};
  return {ErrorCode::unsupported,
          str("rank ", rank, " has no shared memory left for a tensor of ", tensor.bytes(),
              " bytes that the other ranks of its host cannot reach"),
          rank};
}

OwnedPersistentRun make_host_run(PersistentTensor tensor, const HostPolicy& policy,
                                 const ProcessSetMembers& members, int number) {
  return OwnedPersistentRun(new HostRun(tensor, policy, members, number));
}

}  // namespace rueda
