// Turns the arguments of a collective into what the runtime takes.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "api/known_values.h"
#include "coordinator/submission.h"
#include "rueda/rueda.h"

namespace rueda {

// An invalid element type, too, is an error that every rank learns of.
[[nodiscard]] Submission submission_of(Collective collective, const TensorView& input,
                                       const std::string& name);

// An invalid type is kept, so that every rank learns of it.
void set_wire(Request& request, std::optional<DataType> wire);

// Applies `options` for tensor number `index` of the `tensors` that are reduced together. Invalid
// settings are kept here, too.
void set_compression(Submission& submission, const AllreduceOptions& options, std::size_t index,
                     std::size_t tensors);

template <class ReductionOptions>
void set_reduction(Request& request, const ReductionOptions& options) {
  if (Status known = check_known(options.op); known.ok()) {
    request.op = options.op;
  } else {
    request.error = std::move(known);
  }
  request.prescale = options.prescale_factor;
  request.postscale = options.postscale_factor;
}

// For one tensor; `collective` is `allreduce` or `persistent_allreduce`.
[[nodiscard]] Submission allreduce_submission(Collective collective, const TensorView& input,
                                              void* output, const AllreduceOptions& options);

}  // namespace rueda
