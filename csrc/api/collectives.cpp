#include "api/collectives.h"

#include <algorithm>

#include "api/bindings.h"
#include "api/current_runtime.h"
#include "coordinator/repeated_call.h"
#include "core/strings.h"
#include "rueda/rueda.h"

namespace rueda {

// --- What the runtime takes

Submission submission_of(Collective collective, const TensorView& input, const std::string& name) {
  Submission submission;
  submission.request.name = name;
  submission.request.collective = collective;
  submission.request.error = check_known(input.dtype);
  if (submission.request.error.ok()) submission.request.dtype = input.dtype;
  submission.request.shape = input.shape;
  submission.request.on_gpu = input.device != host_device;
  submission.input = static_cast<const std::byte*>(input.data);
  submission.device = input.device;
  submission.stream = input.stream;
  return submission;
}

void set_wire(Request& request, std::optional<DataType> wire) {
  if (!wire) return;
  if (Status known = check_known(*wire); !known.ok()) {
    request.error = std::move(known);
  } else if (can_travel_as(*wire, request.dtype) || info(*wire).kind != DataKind::floating) {
    request.wire = wire;
  }
}

namespace {

// Checks what a compression is to keep of one of `tensors` tensors.
Status check_feedback(const KeptByCodec& kept, const AllreduceOptions& options,
                      std::size_t tensors) {
  const auto refuse = [](const auto&... why) {
    return Status(ErrorCode::invalid_argument, str(why...));
  };
  const CodecKind codec = options.compression.codec;
  for (const auto& [what, each] :
       {std::pair("residuals", &options.residuals), std::pair("velocities", &options.velocities)}) {
    if (each->empty() || each->size() == tensors) continue;
    return refuse(each->size(), " ", what, " for ", tensors, " tensors");
  }
  if (kept.velocity == nullptr) return {};
  if (!is_sparse(codec)) {
    return refuse("velocities are only for top_k and random_k, not for ", name_of(codec));
  }
  if (kept.residual == nullptr) return refuse("a velocity needs a residual");
  if (options.momentum >= 0 && options.momentum < 1) return {};
  return refuse("momentum must be at least 0 and below 1, got ", options.momentum);
}

}  // namespace

void set_compression(Submission& submission, const AllreduceOptions& options, std::size_t index,
                     std::size_t tensors) {
  Request& request = submission.request;
  const CodecKind codec = options.compression.codec;
  if (Status known = check_known(codec); !known.ok()) request.error = std::move(known);
  if (!request.error.ok()) return;
  const bool halves = codec == CodecKind::float16 || codec == CodecKind::bfloat16;
  if (info(request.dtype).kind != DataKind::floating) return;
  if (halves && size_of(request.dtype) <= 2) return;
  request.compression = options.compression;
  const auto kept = [index](const std::vector<float*>& each) {
    return index < each.size() ? each[index] : nullptr;
  };
  submission.kept = {kept(options.residuals), kept(options.velocities),
                     static_cast<float>(options.momentum), options.seed};
  if (codec != CodecKind::none) request.error = check_feedback(submission.kept, options, tensors);
}

Submission allreduce_submission(Collective collective, const TensorView& input, void* output,
                                const AllreduceOptions& options) {
  Submission submission = submission_of(collective, input, options.name);
  set_reduction(submission.request, options);
  submission.request.priority = options.priority;
  set_wire(submission.request, options.wire_dtype);
  set_compression(submission, options, 0, 1);
  submission.request.leaf_ranks = options.leaf_ranks;
  submission.output = static_cast<std::byte*>(output);
  return submission;
}

// --- Collectives

namespace {

// The runtime numbers unnamed groups.
void set_group(Request& request, const std::string& group, int index, int group_size) {
  request.name = group.empty() ? group : str(group, ".", index);
  request.group = group;
  request.group_size = group_size;
}

Handle submit(ProcessSet set, Submission submission) {
  std::vector<Submission> one;
  one.push_back(std::move(submission));
  const auto [runtime, set_id] = runtime_of(set);
  return runtime->submit(set_id, std::move(one)).front();
}

Handle submit_and_wait(ProcessSet set, Submission submission, std::optional<Time> deadline) {
  std::vector<Submission> one;
  one.push_back(std::move(submission));
  const auto [runtime, set_id] = runtime_of(set);
  return runtime->submit_and_wait(set_id, std::move(one), deadline).front();
}

Submission barrier_submission(const CallOptions& options) {
  return submission_of(Collective::barrier, {nullptr, {0}, DataType::uint8}, options.name);
}

// Rows that go to each rank: as requested, or evenly.
Expected<std::vector<std::int64_t>> alltoall_rows(const TensorView& input,
                                                  const std::vector<std::int64_t>& splits,
                                                  std::int64_t ranks) {
  const auto refuse = [](const auto&... why) {
    return Status(ErrorCode::invalid_argument, str("alltoall: ", why...));
  };
  if (input.shape.empty()) return std::vector<std::int64_t>{};  // refused by validate()
  const std::int64_t rows = input.shape.front();
  if (splits.empty()) {
    if (rows % ranks != 0) {
      return refuse("the first extent of ", to_string(input.shape), " is not divisible by ", ranks,
                    " ranks: pass splits");
    }
    return std::vector<std::int64_t>(static_cast<std::size_t>(ranks), rows / ranks);
  }
  // Counts down, so that no sum can overflow.
  std::int64_t left = rows;
  for (const std::int64_t split : splits) {
    if (split < 0 || split > left) {
      left = -1;
      break;
    }
    left -= split;
  }
  if (static_cast<std::int64_t>(splits.size()) != ranks || left != 0) {
    return refuse("splits ", to_string(splits), " must be ", ranks,
                  " non-negative numbers that add up to the first extent of ",
                  to_string(input.shape));
  }
  return splits;
}

// Whether an allreduce is one that PlainAllreduce can describe.
bool is_plain(const TensorView& input, const AllreduceOptions& options) {
  return input.device == host_device && options.priority == 0 && !options.wire_dtype &&
         options.compression.codec == CodecKind::none && options.residuals.empty() &&
         options.velocities.empty() && options.leaf_ranks.empty();
}

void set_result(Submission& submission, const ResultMemory& result) {
  submission.output = static_cast<std::byte*>(result.data);
  if (result.data != nullptr) submission.request.output_bytes = result.bytes;
}

Submission allgather_submission(const TensorView& input, const CallOptions& options) {
  Submission submission = submission_of(Collective::allgather, input, options.name);
  set_result(submission, options.result);
  return submission;
}

Submission broadcast_submission(const TensorView& tensor, int root, const CallOptions& options) {
  Submission submission = submission_of(Collective::broadcast, tensor, options.name);
  const auto [runtime, set_id] = runtime_of(options.process_set);
  if (const auto members = runtime->process_sets().find(set_id)) {
    const auto found = std::find(members->ranks.begin(), members->ranks.end(), root);
    submission.request.root = static_cast<int>(found - members->ranks.begin());
    if (found == members->ranks.end()) {
      submission.request.error =
          Status(ErrorCode::invalid_argument,
                 str("root rank ", root, " is not in the process set, which has ",
                     describe_ranks(members->ranks)));
    }
  }
  submission.output = static_cast<std::byte*>(tensor.data);
  return submission;
}

Submission reduce_scatter_submission(const TensorView& input, const ReduceScatterOptions& options) {
  Submission submission = submission_of(Collective::reduce_scatter, input, options.name);
  set_reduction(submission.request, options);
  submission.request.splits = options.splits;
  set_result(submission, options.result);
  return submission;
}

// For a result in the caller's memory: whole rows, with the input's row shape.
OperationOutput output_of(const RepeatedCall& call, const TensorView& input) {
  OperationOutput output;
  if (call.collective == Collective::broadcast) return output;
  output.shape = input.shape;
  output.shape.front() = 1;
  const std::size_t row =
      static_cast<std::size_t>(element_count(output.shape)) * size_of(input.dtype);
  output.shape.front() = static_cast<std::int64_t>(call.output_bytes / row);
  if (call.received != nullptr) output.received_splits = std::move(*call.received);
  return output;
}

// A collective whose caller waits at once: without a submission if it only repeats an earlier one,
// see Runtime::repeat().
template <class MakeSubmission>
Handle repeat_or_submit(ProcessSet set, const TensorView& input, const RepeatedCall& call,
                        std::optional<Time> deadline, const MakeSubmission& make_submission) {
  using Is = Runtime::Repetition::Is;
  Runtime::Repetition tried;
  if (input.device == host_device) {
    const auto [runtime, set_id] = runtime_of(set);
    tried = runtime->repeat(set_id, call, [&] { return deadline.value_or(Time::max()); });
  }
  if (tried.is == Is::begun) return tried.handle;
  if (tried.is == Is::not_tried) return submit_and_wait(set, make_submission(), deadline);
  const auto done = std::make_shared<HandleState>();
  done->complete({}, output_of(call, input));
  return Handle(done);
}

RepeatedCall call_of(Collective collective, const TensorView& input, const std::string& name,
                     const ResultMemory& result) {
  return {.name = name,
          .collective = collective,
          .input = static_cast<const std::byte*>(input.data),
          .output = static_cast<std::byte*>(result.data),
          .output_bytes = result.bytes,
          .dtype = input.dtype,
          .shape = input.shape};
}

Submission alltoall_submission(const TensorView& input, const std::vector<std::int64_t>& splits,
                               const CallOptions& options) {
  Submission submission = submission_of(Collective::alltoall, input, options.name);
  set_result(submission, options.result);
  const auto [runtime, set_id] = runtime_of(options.process_set);
  const auto members = runtime->process_sets().find(set_id);
  const std::int64_t ranks = members ? members->size() : 1;
  auto rows = alltoall_rows(input, splits, ranks);
  // Only this rank knows its splits: an error travels with the request to the others.
  if (rows.ok()) {
    submission.rows = *std::move(rows);
  } else {
    submission.request.error = rows.status();
  }
  return submission;
}

}  // namespace

Handle allreduce(const TensorView& input, void* output, const AllreduceOptions& options) {
  return submit(options.process_set,
                allreduce_submission(Collective::allreduce, input, output, options));
}

Handle allreduce_blocking(const TensorView& input, void* output, const AllreduceOptions& options,
                          std::optional<Time> deadline) {
  return submit_and_wait(options.process_set,
                         allreduce_submission(Collective::allreduce, input, output, options),
                         deadline);
}

void allreduce_blocking(const TensorView& input, void* output, const AllreduceOptions& options) {
  Handle handle;
  auto tried = Tried::not_repeated;
  if (is_plain(input, options)) {
    tried = try_to_repeat(
        {.name = options.name,
         .input = input.data,
         .output = output,
         .shape = input.shape,
         .dtype = input.dtype,
         .op = options.op,
         .prescale_factor = options.prescale_factor,
         .postscale_factor = options.postscale_factor,
         .process_set = options.process_set},
        [] { return Time::max(); }, handle);
  }
  if (tried == Tried::done) return;
  if (tried == Tried::not_repeated) {
    handle = allreduce_blocking(input, output, options, std::nullopt);
  }
  handle.wait();
}

Tried try_to_repeat(const PlainAllreduce& call, const std::function<Time()>& begin_to_wait,
                    Handle& handle) {
  const auto [runtime, set_id] = runtime_of(call.process_set);
  auto repetition = runtime->repeat(set_id,
                                    {.name = call.name,
                                     .input = static_cast<const std::byte*>(call.input),
                                     .output = static_cast<std::byte*>(call.output),
                                     .dtype = call.dtype,
                                     .shape = call.shape,
                                     .op = call.op,
                                     .prescale = call.prescale_factor,
                                     .postscale = call.postscale_factor},
                                    begin_to_wait);
  using Is = Runtime::Repetition::Is;
  if (repetition.is == Is::not_tried) return Tried::not_repeated;
  if (repetition.is == Is::done) return Tried::done;
  handle = std::move(repetition.handle);
  return Tried::begun;
}

std::vector<Handle> grouped_allreduce(std::span<const TensorView> inputs,
                                      std::span<void* const> outputs,
                                      const AllreduceOptions& options) {
  const auto [runtime, set_id] = runtime_of(options.process_set);
  if (inputs.size() != outputs.size()) {
    throw InvalidArgumentError(
        str("grouped_allreduce: ", inputs.size(), " inputs and ", outputs.size(), " outputs"));
  }
  if (inputs.empty()) return {};
  std::vector<Submission> submissions;
  submissions.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Submission& submission =
        submissions.emplace_back(submission_of(Collective::allreduce, inputs[i], ""));
    set_reduction(submission.request, options);
    submission.request.priority = options.priority;
    set_wire(submission.request, options.wire_dtype);
    set_compression(submission, options, i, inputs.size());
    submission.request.leaf_ranks = options.leaf_ranks;
    set_group(submission.request, options.name, static_cast<int>(i),
              static_cast<int>(inputs.size()));
    submission.output = static_cast<std::byte*>(outputs[i]);
  }
  return runtime->submit(set_id, std::move(submissions));
}

Handle allgather(const TensorView& input, const CallOptions& options) {
  return submit(options.process_set, allgather_submission(input, options));
}

Handle allgather_blocking(const TensorView& input, const CallOptions& options,
                          std::optional<Time> deadline) {
  return repeat_or_submit(options.process_set, input,
                          call_of(Collective::allgather, input, options.name, options.result),
                          deadline, [&] { return allgather_submission(input, options); });
}

Output allgather_blocking(const TensorView& input, const CallOptions& options) {
  return allgather_blocking(input, options, std::nullopt).output();
}

Handle broadcast(const TensorView& tensor, int root, const CallOptions& options) {
  return submit(options.process_set, broadcast_submission(tensor, root, options));
}

Handle broadcast_blocking(const TensorView& tensor, int root, const CallOptions& options,
                          std::optional<Time> deadline) {
  RepeatedCall call = call_of(Collective::broadcast, tensor, options.name, {tensor.data, 0});
  call.root = root;
  return repeat_or_submit(options.process_set, tensor, call, deadline,
                          [&] { return broadcast_submission(tensor, root, options); });
}

void broadcast_blocking(const TensorView& tensor, int root, const CallOptions& options) {
  broadcast_blocking(tensor, root, options, std::nullopt).wait();
}

Handle reduce_scatter(const TensorView& input, const ReduceScatterOptions& options) {
  return submit(options.process_set, reduce_scatter_submission(input, options));
}

Handle reduce_scatter_blocking(const TensorView& input, const ReduceScatterOptions& options,
                               std::optional<Time> deadline) {
  RepeatedCall call = call_of(Collective::reduce_scatter, input, options.name, options.result);
  call.op = options.op;
  call.prescale = options.prescale_factor;
  call.postscale = options.postscale_factor;
  call.splits = options.splits;
  return repeat_or_submit(options.process_set, input, call, deadline,
                          [&] { return reduce_scatter_submission(input, options); });
}

Output reduce_scatter_blocking(const TensorView& input, const ReduceScatterOptions& options) {
  return reduce_scatter_blocking(input, options, std::nullopt).output();
}

Handle alltoall(const TensorView& input, const std::vector<std::int64_t>& splits,
                const CallOptions& options) {
  return submit(options.process_set, alltoall_submission(input, splits, options));
}

Handle alltoall_blocking(const TensorView& input, const std::vector<std::int64_t>& splits,
                         const CallOptions& options, std::optional<Time> deadline) {
  RepeatedCall call = call_of(Collective::alltoall, input, options.name, options.result);
  std::vector<std::int64_t> received;
  call.splits = splits;
  call.received = &received;
  return repeat_or_submit(options.process_set, input, call, deadline,
                          [&] { return alltoall_submission(input, splits, options); });
}

Output alltoall_blocking(const TensorView& input, const std::vector<std::int64_t>& splits,
                         const CallOptions& options) {
  return alltoall_blocking(input, splits, options, std::nullopt).output();
}

Handle barrier(const CallOptions& options) {
  return submit(options.process_set, barrier_submission(options));
}

Handle barrier_blocking(const CallOptions& options, std::optional<Time> deadline) {
  return submit_and_wait(options.process_set, barrier_submission(options), deadline);
}

void barrier_blocking(const CallOptions& options) {
  barrier_blocking(options, std::nullopt).wait();
}

Handle join(const CallOptions& options) {
  const auto [runtime, set_id] = runtime_of(options.process_set);
  return runtime->join(set_id);
}

Handle refuse(const std::string& name, ProcessSet process_set, const std::string& why,
              ErrorCode code, int group_size, ErrorReason reason) {
  // As an error this would not arrive: the others would take it for a rank that takes part.
  if (code == ErrorCode::ok || code > ErrorCode::internal) {
    throw InvalidArgumentError(str("refuse: error code ", static_cast<int>(code),
                                   code == ErrorCode::ok ? " (ok)" : "", " is not an error"));
  }
  // Nobody else's operation would match it, and all would wait.
  if (group_size < 0) {
    throw InvalidArgumentError(str("refuse: group_size is ", group_size,
                                   ", but a group has at least 1 tensor; 0 refuses an operation "
                                   "that is not grouped"));
  }
  std::vector<Submission> submissions;
  for (int i = 0; i < std::max(1, group_size); ++i) {
    Submission submission = submission_of(Collective::allreduce, {}, name);
    submission.request.error = Status(code, why, -1, {.reason = reason});
    if (group_size > 0) set_group(submission.request, name, i, group_size);
    submissions.push_back(std::move(submission));
  }
  const auto [runtime, set_id] = runtime_of(process_set);
  return runtime->submit(set_id, std::move(submissions)).front();
}

}  // namespace rueda
