#include "api/submissions.h"

namespace rueda {

Submission submission_of(Collective collective, const TensorView& input, const std::string& name) {
  Submission submission;
  submission.request.name = name;
  submission.request.collective = collective;
  submission.request.dtype = input.dtype;
  submission.request.shape = input.shape;
  submission.request.on_gpu = input.device != host_device;
  submission.input = static_cast<const std::byte*>(input.data);
  submission.device = input.device;
  submission.stream = input.stream;
  return submission;
}

void set_wire(Request& request, std::optional<DataType> wire) {
  if (wire && (can_travel_as(*wire, request.dtype) || info(*wire).kind != DataKind::floating)) {
    request.wire = wire;
  }
}

void set_compression(Submission& submission, const AllreduceOptions& options, std::size_t index) {
  Request& request = submission.request;
  const CodecKind codec = options.compression.codec;
  const bool halves = codec == CodecKind::float16 || codec == CodecKind::bfloat16;
  if (info(request.dtype).kind != DataKind::floating) return;
  if (halves && size_of(request.dtype) <= 2) return;
  request.compression = options.compression;
  const auto kept = [index](const std::vector<float*>& each) {
    return index < each.size() ? each[index] : nullptr;
  };
  submission.kept = {kept(options.residuals), kept(options.velocities),
                     static_cast<float>(options.momentum), options.seed};
}

Submission allreduce_submission(Collective collective, const TensorView& input, void* output,
                                const AllreduceOptions& options) {
  Submission submission = submission_of(collective, input, options.name);
  set_reduction(submission.request, options);
  submission.request.priority = options.priority;
  set_wire(submission.request, options.wire_dtype);
  set_compression(submission, options, 0);
  submission.request.leaf_ranks = options.leaf_ranks;
  submission.output = static_cast<std::byte*>(output);
  return submission;
}

}  // namespace rueda
