#include "rueda/persistent.h"

#include <chrono>
#include <optional>

#include "api/current_engine.h"
#include "coordinator/patience.h"
#include "core/strings.h"
#include "onehost/host_reduction.h"

namespace rueda {

namespace {

// While it sleeps it looks so often whether the world is broken.
constexpr auto longest_sleep = std::chrono::milliseconds(50);
// Looks before it asks for the time, or gives the processor away: what is waited for mostly comes
// within a microsecond.
constexpr int first_looks = 100;
constexpr int first_looks_when_crowded = 60;
constexpr Duration spinning = std::chrono::milliseconds(1);

Submission submission_of(Collective collective, const TensorView& input, void* output,
                         const AllreduceOptions& options) {
  Submission submission;
  Request& request = submission.request;
  request.name = options.name;
  request.collective = collective;
  request.dtype = input.dtype;
  request.on_gpu = input.device != host_device;
  request.shape = input.shape;
  if (options.wire_dtype != input.dtype) request.wire = options.wire_dtype;
  request.op = options.op;
  request.prescale = options.prescale_factor;
  request.postscale = options.postscale_factor;
  submission.input = static_cast<const std::byte*>(input.data);
  submission.output = static_cast<std::byte*>(output);
  return submission;
}

Handle submit(Engine& engine, int set, Submission submission) {
  std::vector<Submission> one;
  one.push_back(std::move(submission));
  return engine.submit(set, std::move(one)).front();
}

// No process set has such a number.
std::uint64_t channel_key(int set, int number) {
  return (std::uint64_t{1} << 63) | (static_cast<std::uint64_t>(set) << 32) |
         static_cast<std::uint64_t>(number);
}

}  // namespace

class PersistentRun {
 public:
  virtual ~PersistentRun() = default;
  virtual void start() = 0;
  virtual bool done() = 0;
  virtual void wait() = 0;
};

namespace {

// On one host: in the calling thread, through a channel of its own.
class HostRun final : public PersistentRun {
 public:
  HostRun(std::shared_ptr<Engine> engine, const ProcessSetMembers& members, int number,
          const TensorView& input, void* output, const AllreduceOptions& options)
      : engine_(std::move(engine)),
        members_(members.ranks),
        crowded_(engine_->host()->outnumbers_processors()),
        name_(options.name.empty() ? str("persistent.", number) : options.name),
        channel_(engine_->host(), members.ranks, members.rank, channel_key(members.id, number),
                 HostChannel::WokenBy::channel),
        reduction_(channel_, engine_->host_policy(), combination_of(input, options, members.size()),
                   members.size(),
                   {{static_cast<const std::byte*>(input.data), static_cast<std::byte*>(output),
                     element_count(input.shape)}},
                   HostCollective::Begin::later) {}

  void start() override {
    // Whether the others have been quick must not decide whether a second start is an error.
    if (to_be_waited_for_) {
      throw InvalidArgumentError(str("'", name_, "' is started again before it was waited for"));
    }
    if (engine_->is_broken()) fail();
    to_be_waited_for_ = true;
    reduction_.start();
    reduction_.advance();
  }

  bool done() override {
    reduction_.advance();
    if (!reduction_.done()) {
      if (engine_->is_broken()) fail();
      return false;
    }
    to_be_waited_for_ = false;
    reduction_.status().throw_if_error();
    return true;
  }

  void wait() override {
    const int looks = crowded_ ? first_looks_when_crowded : first_looks;
    for (int look = 0; look < looks && !reduction_.done(); ++look) {
      if (!reduction_.advance()) pause_processor();
    }
    if (!reduction_.done()) wait_long();
    to_be_waited_for_ = false;
    if (!reduction_.status().ok()) give_up(reduction_.status());
  }

 private:
  static Combination combination_of(const TensorView& input, const AllreduceOptions& options,
                                    int size) {
    const int divisor = options.op == ReduceOp::average ? size : 1;
    return {input.dtype, options.op, options.prescale_factor, divisor, options.postscale_factor};
  }

  void wait_long() {
    Patience patience(crowded_, spinning);
    Time last_move = Clock::now();
    while (!reduction_.done()) {
      const Time now = Clock::now();
      if (reduction_.advance()) {
        patience.renew();
        last_move = now;
      } else if (!patience.look_again(now)) {
        sleep();
        check(last_move);
      }
    }
  }

  void sleep() {
    Sleeper sleeper(channel_.wake_word());
    if (!reduction_.advance() && !reduction_.done()) sleeper.sleep(Clock::now() + longest_sleep);
  }

  // Throws where waiting has no sense any more.
  void check(Time last_move) {
    if (reduction_.done()) return;
    if (engine_->is_broken()) fail();
    const double timeout = engine_->options().transfer_timeout;
    if (timeout <= 0 || Clock::now() - last_move < seconds(timeout)) return;
    std::vector<int> ranks;
    for (const int member : reduction_.awaited()) {
      ranks.push_back(members_[static_cast<std::size_t>(member)]);
    }
    give_up(Status(
        ErrorCode::timeout,
        str("'", name_, "' has not moved for ", timeout, " s: waiting for ", describe_ranks(ranks)),
        ranks.empty() ? -1 : ranks.front()));
  }

  // The others count on this rank, so the world is over for them, too.
  [[noreturn]] void give_up(const Status& reason) {
    engine_->abort(reason.to_string());
    reason.throw_if_error();
    throw InternalError("a persistent operation was given up without a reason");
  }

  [[noreturn]] void fail() {
    engine_->refusal().throw_if_error();
    throw ShutdownError("this rank has shut down");
  }

  const std::shared_ptr<Engine> engine_;
  const std::vector<int> members_;
  const bool crowded_;
  const std::string name_;
  HostChannel channel_;
  HostReduction reduction_;
  bool to_be_waited_for_ = false;
};

// Anywhere: a named operation.
class NamedRun final : public PersistentRun {
 public:
  NamedRun(std::shared_ptr<Engine> engine, int number, const TensorView& input, void* output,
           const AllreduceOptions& options)
      : engine_(std::move(engine)), input_(input), output_(output), options_(options) {
    if (options_.name.empty()) options_.name = str("persistent.", number);
  }

  void start() override {
    if (handle_) {
      throw InvalidArgumentError(
          str("'", options_.name, "' is started again before it was waited for"));
    }
    handle_ = submit(*engine_, options_.process_set.id,
                     submission_of(Collective::allreduce, input_, output_, options_));
  }
  bool done() override {
    if (handle_ && !handle_->done()) return false;
    wait();
    return true;
  }
  void wait() override {
    if (!handle_) return;
    const Handle handle = *std::exchange(handle_, std::nullopt);
    handle.wait();
  }
  ~NamedRun() override {
    if (handle_) (void)handle_->wait_for(std::chrono::nanoseconds::max());
  }

 private:
  const std::shared_ptr<Engine> engine_;
  const TensorView input_;
  void* const output_;
  AllreduceOptions options_;
  std::optional<Handle> handle_;
};

}  // namespace

Allreduce::Allreduce(const TensorView& tensor, const AllreduceOptions& options)
    : Allreduce(tensor, tensor.data, options) {}

Allreduce::Allreduce(const TensorView& input, void* output, const AllreduceOptions& options) {
  auto engine = current_engine();
  const int set = options.process_set.id;
  const Handle agreed =
      submit(*engine, set, submission_of(Collective::persistent_allreduce, input, output, options));
  const int number = agreed.output().persistent;
  const auto members = engine->process_sets().find(set);
  if (engine->host() && members) {
    run_ = std::make_unique<HostRun>(std::move(engine), *members, number, input, output, options);
  } else {
    run_ = std::make_unique<NamedRun>(std::move(engine), number, input, output, options);
  }
}

Allreduce::~Allreduce() = default;
Allreduce::Allreduce(Allreduce&&) noexcept = default;
Allreduce& Allreduce::operator=(Allreduce&&) noexcept = default;

void Allreduce::start() {
  run_->start();
}
bool Allreduce::done() {
  return run_->done();
}
void Allreduce::wait() {
  run_->wait();
}

}  // namespace rueda
