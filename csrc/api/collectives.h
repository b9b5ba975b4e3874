// How the arguments of a collective become what the runtime takes.
#pragma once

#include <optional>
#include <string>

#include "coordinator/submission.h"
#include "rueda/rueda.h"

namespace rueda {

[[nodiscard]] Submission submission_of(Collective collective, const TensorView& input,
                                       const std::string& name);

// What cannot be is kept, so that every rank is told of it.
void set_wire(Request& request, std::optional<DataType> wire);

// As `options` say for tensor number `index` of the `tensors` that are reduced together. What
// cannot be is kept here, too.
void set_compression(Submission& submission, const AllreduceOptions& options, std::size_t index,
                     std::size_t tensors);

template <class ReductionOptions>
void set_reduction(Request& request, const ReductionOptions& options) {
  request.op = options.op;
  request.prescale = options.prescale_factor;
  request.postscale = options.postscale_factor;
}

// Of one tensor; `collective` is `allreduce` or `persistent_allreduce`.
[[nodiscard]] Submission allreduce_submission(Collective collective, const TensorView& input,
                                              void* output, const AllreduceOptions& options);

}  // namespace rueda
