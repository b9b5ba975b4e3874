#include "rueda/persistent.h"

#include <utility>

#include "api/bindings.h"
#include "api/collectives.h"
#include "api/current_runtime.h"
#include "api/persistent_kinds.h"
#include "backend/device_backend.h"
#include "core/in_quotes.h"
#include "core/strings.h"

namespace rueda {

void PersistentLife::begin() {
  // Whether a second start is an error must not depend on how fast the other ranks were.
  if (to_be_waited_for_) {
    throw InvalidArgumentError(
        str(in_quotes(name()), " is started again before it was waited for"));
  }
  fail_if_broken();
  if (has_departed_) fail_departed();
  to_be_waited_for_ = true;
  if (!counters_) return;
  counters_->started.add(1);
  FlightRecorder& recorder = runtime_->flight_recorder();
  if (!recorder.is_on() && !runtime_->timeline().is_open()) return;
  const Time now = Clock::now();
  if (recorder.is_on()) {
    run_ = recorder.submit(set_id_, request_, now);
    recorder.start(run_);
  }
  draw([&](TimelineWriter& writer, const Request& run) {
    drawn_from_ = now;
    writer.started(set_id_, run, TimelineWriter::Wait{now, now, now}, now);
  });
}

void PersistentLife::end(const Status& status) {
  if (!std::exchange(to_be_waited_for_, false) || !counters_) return;
  (status.ok() ? counters_->completed : counters_->failed).add(1);
  if (run_ != 0) runtime_->flight_recorder().end(std::exchange(run_, 0), status);
  if (!drawn_from_) return;
  const Time from = *std::exchange(drawn_from_, std::nullopt);
  if (!status.ok()) return;
  draw([&](TimelineWriter& writer, const Request& run) {
    writer.ended(set_id_, run, from, Clock::now(), {});
  });
}

TransferCounters& PersistentLife::observe_runs() {
  return counters_.emplace(runtime_->metrics().persistent_runs, bytes_).transfers;
}

// Drawn as an allreduce, not as the agreement on one.
template <class Draw>
void PersistentLife::draw(const Draw& what) {
  runtime_->timeline().write([&](TimelineWriter& writer) {
    Request run = request_;
    run.collective = Collective::allreduce;
    what(writer, run);
  });
}

void PersistentLife::fail_if_broken() const {
  if (!is_broken()) return;
  runtime_->refusal(set_id_).throw_if_error();
  throw ShutdownError("this rank has shut down");
}

void PersistentLife::fail_departed() {
  has_departed_ = true;
  const Status departure = runtime_->epoch().sets().departure();
  end(departure);
  Status(departure.code(), str(in_quotes(name()), " cannot complete: ", departure.message()),
         departure.peer())
      .throw_if_error();
  throw InternalError("a rank has left, but its departure is not recorded");
}

void PersistentLife::give_up(const Status& reason) {
  runtime_->abort(reason.to_string());
  reason.throw_if_error();
  throw InternalError("a persistent operation was abandoned without a reason");
}

PersistentAgreement::PersistentAgreement(std::shared_ptr<Runtime> runtime, const TensorView& input,
                                         void* output, const AllreduceOptions& options)
    : tensor_{std::move(runtime), input, output, options, {}, nullptr, nullptr} {
  std::vector<Submission> one;
  one.push_back(allreduce_submission(Collective::persistent_allreduce, input, output, options));
  Request& request = one.front().request;
  // Invalid arguments are refused in any case, and have no size.
  if (request.error.ok() && flaw_of(input.shape, input.dtype).empty()) {
    request.error = prepare_host_run(tensor_);
  }
  handle_ = tensor_.runtime->submit(options.process_set.id, std::move(one)).front();
}

void PersistentRunEnd::operator()(PersistentRun* run) const noexcept {
  if (run->is_of_this_process()) delete run;
}

void PersistentRun::require_this_process() const {
  if (!is_of_this_process()) throw_forked();
}

OwnedPersistentRun PersistentAgreement::make_run() {
  handle_.wait();
  OperationOutput& agreed = handle_.state()->output;
  if (tensor_.options.name.empty()) tensor_.options.name = str("persistent.", agreed.persistent);
  // Nothing else may keep a reference: it is destroyed with the run, and then waits for the GPU.
  if (auto reduction = std::move(agreed.reduction)) {
    const bool is_direct = reduction->obstacle().ok();
    return is_direct ? make_device_run(std::move(tensor_), std::move(reduction))
                     : make_named_run(std::move(tensor_), std::move(reduction));
  }
  const auto members = tensor_.runtime->process_sets().find(tensor_.options.process_set.id);
  const auto policy = tensor_.runtime->epoch().algorithms().host_policy(tensor_.bytes());
  if (tensor_.host && policy && members) {
    return make_host_run(std::move(tensor_), *policy, *members, agreed.persistent);
  }
  return make_named_run(std::move(tensor_), nullptr);
}

BegunAllreduce begin_persistent_allreduce(const TensorView& input, void* output,
                                          const AllreduceOptions& options) {
  const auto agreement =
      std::make_shared<PersistentAgreement>(current_runtime(), input, output, options);
  return {agreement->handle(), [agreement] { return agreement->make_run(); }};
}

Allreduce::Allreduce(const TensorView& tensor, const AllreduceOptions& options)
    : Allreduce(tensor, tensor.data, options) {}

Allreduce::Allreduce(const TensorView& input, void* output, const AllreduceOptions& options)
    : run_(PersistentAgreement(current_runtime(), input, output, options).make_run()) {}

Allreduce::~Allreduce() = default;
Allreduce::Allreduce(Allreduce&&) noexcept = default;
Allreduce& Allreduce::operator=(Allreduce&&) noexcept = default;

void Allreduce::start() {
  run_->require_this_process();
  run_->start(std::nullopt);
}
void Allreduce::start(void* stream) {
  run_->require_this_process();
  run_->start(stream);
}
bool Allreduce::done() {
  run_->require_this_process();
  return run_->done();
}
void Allreduce::wait() {
  run_->require_this_process();
  run_->wait();
}

}  // namespace rueda
