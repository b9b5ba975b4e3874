// Collectives on torch::Tensor, each in up to four forms:
//
//   allreduce(tensor)          returns the result in a new tensor
//   allreduce_(tensor)         in place: overwrites the tensor, and returns it
//   allreduce_async(tensor)    returns a TensorHandle at once; its wait() returns the result
//   allreduce_async_(tensor)   asynchronous and in place
//
// Tensors are dense, in the memory of the CPU or of an NVIDIA GPU, of any shape and of float16,
// bfloat16, float32, float64, (u)int8 to (u)int64, bool, complex64 or complex128. Tensors that are
// not contiguous are copied first. Results are contiguous and on the tensor's device. Autograd does
// not see the operation: results require no gradient.
//
// A rank uses one GPU, that of the first tensor. Under one name, all ranks pass CPU tensors or all
// pass GPU tensors. Operations wait for what the current stream has enqueued on a tensor, and what
// the current stream of wait() enqueues afterwards sees the results.
//
// Options are those of rueda/rueda.h: a name (unnamed operations are numbered within their process
// set), a process set (default: all ranks), and for reductions the operation (default: average) and
// factors. Every rank of the set must take part.
//
// Errors (the asynchronous forms throw them from wait()): MismatchError if ranks disagree about
// shape, dtype or options; InvalidArgumentError for an undefined tensor, values that cannot work
// and, in place, a tensor whose elements share memory, as from expand(); UnsupportedError for a
// tensor that is sparse, nested, on another device or of another dtype, and for operations that are
// not defined on the dtype; StalledError, PeerLostError, TimeoutError, ShutdownError. Every rank of
// the set gets the error, even if only one rank's tensor is at fault. Before init() the call itself
// throws NotInitializedError, on the calling rank alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "rueda/torch/tensor_handle.h"

namespace rueda::libtorch {

// --- Allreduce ---------------------------------------------------------------------------------

// The element-wise reduction over the ranks: same shape and dtype on every rank; the results are
// bitwise identical.
[[nodiscard]] inline TensorHandle allreduce_async(const ::torch::Tensor& tensor,
                                                  const AllreduceOptions& options = {}) {
  if (const auto refusal = detail::refusal_of(tensor)) {
    return detail::refused(*refusal, options.name, options.process_set);
  }
  const ::torch::Tensor input = detail::plain(tensor);
  const ::torch::Tensor output = ::torch::empty(input.sizes(), input.options());
  Handle handle = rueda::allreduce(detail::view_of(input), output.data_ptr(), options);
  return detail::pending(std::move(handle), input, output, output);
}

namespace detail {

// `residual` backs options.residuals, if any; it is kept alive while the operation may write it.
[[nodiscard]] inline TensorHandle allreduce_in_place(const ::torch::Tensor& tensor,
                                                     const AllreduceOptions& options,
                                                     const ::torch::Tensor& residual = {}) {
  if (const auto refusal = refusal_in_place(tensor)) {
    return refused(*refusal, options.name, options.process_set);
  }
  const ::torch::Tensor work = working_tensor(tensor);
  Handle handle = rueda::allreduce(view_of(work), work.data_ptr(), options);
  return pending(std::move(handle), work, work, tensor, residual);
}

}  // namespace detail

[[nodiscard]] inline TensorHandle allreduce_async_(const ::torch::Tensor& tensor,
                                                   const AllreduceOptions& options = {}) {
  return detail::allreduce_in_place(tensor, options);
}

inline ::torch::Tensor allreduce(const ::torch::Tensor& tensor,
                                 const AllreduceOptions& options = {}) {
  return allreduce_async(tensor, options).wait();
}

inline ::torch::Tensor allreduce_(const ::torch::Tensor& tensor,
                                  const AllreduceOptions& options = {}) {
  return allreduce_async_(tensor, options).wait();
}

// --- Grouped allreduce -------------------------------------------------------------------------

namespace detail {

[[nodiscard]] inline std::vector<TensorHandle> grouped_allreduce(
    const std::vector<::torch::Tensor>& tensors, const AllreduceOptions& options, bool in_place) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const auto refusal = in_place ? refusal_in_place(tensors[i]) : refusal_of(tensors[i])) {
      const std::string why = text("tensor ", i, " of the group: ", refusal->why);
      const auto group_size = static_cast<int>(tensors.size());
      const TensorHandle handle =
          pending(refuse(options.name, options.process_set, why, refusal->code, group_size));
      return std::vector<TensorHandle>(tensors.size(), handle);
    }
  }
  std::vector<::torch::Tensor> inputs;
  std::vector<::torch::Tensor> outputs;
  std::vector<TensorView> views;
  std::vector<void*> memory;
  for (const ::torch::Tensor& tensor : tensors) {
    inputs.push_back(in_place ? working_tensor(tensor) : plain(tensor));
    outputs.push_back(in_place ? inputs.back()
                               : ::torch::empty(tensor.sizes(), inputs.back().options()));
    views.push_back(view_of(inputs.back()));
    memory.push_back(outputs.back().data_ptr());
  }
  std::vector<Handle> handles = rueda::grouped_allreduce(views, memory, options);
  std::vector<TensorHandle> group;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const ::torch::Tensor& result = in_place ? tensors[i] : outputs[i];
    group.push_back(pending(std::move(handles[i]), inputs[i], outputs[i], result));
  }
  return group;
}

// Waits for all of them, even after an error; then throws the first error.
inline std::vector<::torch::Tensor> wait_for_all(const std::vector<TensorHandle>& handles) {
  std::vector<::torch::Tensor> results;
  std::exception_ptr error;
  for (const TensorHandle& handle : handles) {
    try {
      results.push_back(handle.wait());
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return results;
}

}  // namespace detail

// Reduces several tensors, of any shapes and dtypes, together: none completes before all are ready
// on all ranks. The same number on every rank; it may be zero.
[[nodiscard]] inline std::vector<TensorHandle> grouped_allreduce_async(
    const std::vector<::torch::Tensor>& tensors, const AllreduceOptions& options = {}) {
  return detail::grouped_allreduce(tensors, options, false);
}

[[nodiscard]] inline std::vector<TensorHandle> grouped_allreduce_async_(
    const std::vector<::torch::Tensor>& tensors, const AllreduceOptions& options = {}) {
  return detail::grouped_allreduce(tensors, options, true);
}

inline std::vector<::torch::Tensor> grouped_allreduce(const std::vector<::torch::Tensor>& tensors,
                                                      const AllreduceOptions& options = {}) {
  return detail::wait_for_all(grouped_allreduce_async(tensors, options));
}

inline std::vector<::torch::Tensor> grouped_allreduce_(const std::vector<::torch::Tensor>& tensors,
                                                       const AllreduceOptions& options = {}) {
  return detail::wait_for_all(grouped_allreduce_async_(tensors, options));
}

// --- All-gather ---------------------------------------------------------------------------------

// Concatenates the ranks' tensors along the first dimension, in rank order. First extents may
// differ (0 is allowed); the other extents and the dtype must agree. Not for scalars.
[[nodiscard]] inline TensorHandle allgather_async(const ::torch::Tensor& tensor,
                                                  const CallOptions& options = {}) {
  if (const auto refusal = detail::refusal_of(tensor)) {
    return detail::refused(*refusal, options.name, options.process_set);
  }
  const ::torch::Tensor input = detail::plain(tensor);
  return detail::pending(rueda::allgather(detail::view_of(input), options), input);
}

inline ::torch::Tensor allgather(const ::torch::Tensor& tensor, const CallOptions& options = {}) {
  return allgather_async(tensor, options).wait();
}

// --- Broadcast ----------------------------------------------------------------------------------

// The root's tensor on every rank: same shape and dtype everywhere. `root` is a rank of the world
// and a member of the set.
[[nodiscard]] inline TensorHandle broadcast_async_(const ::torch::Tensor& tensor, int root,
                                                   const CallOptions& options = {}) {
  if (const auto refusal = detail::refusal_in_place(tensor)) {
    return detail::refused(*refusal, options.name, options.process_set);
  }
  const ::torch::Tensor work = detail::working_tensor(tensor);
  Handle handle = rueda::broadcast(detail::view_of(work), root, options);
  return detail::pending(std::move(handle), work, work, tensor);
}

[[nodiscard]] inline TensorHandle broadcast_async(const ::torch::Tensor& tensor, int root,
                                                  const CallOptions& options = {}) {
  if (const auto refusal = detail::refusal_of(tensor)) {
    return detail::refused(*refusal, options.name, options.process_set);
  }
  const ::torch::Tensor input = detail::plain(tensor);
  ::torch::Tensor result = ::torch::empty(input.sizes(), input.options());
  if (rueda::rank() == root) result.copy_(input);
  return broadcast_async_(result, root, options);
}

inline ::torch::Tensor broadcast(const ::torch::Tensor& tensor, int root,
                                 const CallOptions& options = {}) {
  return broadcast_async(tensor, root, options).wait();
}

inline ::torch::Tensor broadcast_(const ::torch::Tensor& tensor, int root,
                                  const CallOptions& options = {}) {
  return broadcast_async_(tensor, root, options).wait();
}

// --- Reduce-scatter -----------------------------------------------------------------------------

// Reduces as allreduce() does, then gives each rank its rows of the first dimension: as
// `options.splits` says, otherwise as even as possible, earlier ranks get one more. Not for
// scalars.
[[nodiscard]] inline TensorHandle reduce_scatter_async(const ::torch::Tensor& tensor,
                                                       const ReduceScatterOptions& options = {}) {
  if (const auto refusal = detail::refusal_of(tensor)) {
    return detail::refused(*refusal, options.name, options.process_set);
  }
  const ::torch::Tensor input = detail::plain(tensor);
  return detail::pending(rueda::reduce_scatter(detail::view_of(input), options), input);
}

inline ::torch::Tensor reduce_scatter(const ::torch::Tensor& tensor,
                                      const ReduceScatterOptions& options = {}) {
  return reduce_scatter_async(tensor, options).wait();
}

// --- All-to-all ---------------------------------------------------------------------------------

// Sends splits[r] rows of the first dimension to rank r of the set (empty: evenly; the first extent
// must be divisible by the number of ranks) and concatenates what arrives, in rank order. The
// handle's received_splits() are the rows that came from each rank. Not for scalars.
[[nodiscard]] inline TensorHandle alltoall_async(const ::torch::Tensor& tensor,
                                                 const std::vector<std::int64_t>& splits = {},
                                                 const CallOptions& options = {}) {
  if (const auto refusal = detail::refusal_of(tensor)) {
    return detail::refused(*refusal, options.name, options.process_set);
  }
  const ::torch::Tensor input = detail::plain(tensor);
  return detail::pending(rueda::alltoall(detail::view_of(input), splits, options), input);
}

struct AlltoallResult {
  ::torch::Tensor tensor;
  std::vector<std::int64_t> received_splits;  // rows received from each rank of the set
};

inline AlltoallResult alltoall(const ::torch::Tensor& tensor,
                               const std::vector<std::int64_t>& splits = {},
                               const CallOptions& options = {}) {
  const TensorHandle handle = alltoall_async(tensor, splits, options);
  return {handle.wait(), handle.received_splits()};
}

}  // namespace rueda::libtorch
