#include "backend/nccl/communicator.h"

#include <array>

#include "core/strings.h"
#include "reduce/element.h"

namespace rueda {

Expected<nccl::RedOp> NcclCommunicator::premultiplied_sum(const NcclReduction& reduction,
                                                          double scale) {
  // In the type of the elements, read before the call returns.
  std::array<std::byte, 8> scalar{};
  switch (reduction.dtype) {
    case nccl::float16: write(scalar.data(), float_to_float16(static_cast<float>(scale))); break;
    case nccl::bfloat16: write(scalar.data(), float_to_bfloat16(static_cast<float>(scale))); break;
    case nccl::float32: write(scalar.data(), static_cast<float>(scale)); break;
    case nccl::float64: write(scalar.data(), scale); break;
    default:
      return Status(ErrorCode::unsupported, "NCCL scales sums of floating-point elements only");
  }
  nccl::RedOp op = nccl::sum;
  if (Status status = enqueue("ncclRedOpCreatePreMulSum",
                              [&](const nccl::Functions& functions) {
                                return functions.red_op_create_pre_mul_sum(
                                    &op, scalar.data(), reduction.dtype, nccl::scalar_on_host,
                                    handle_);
                              });
      !status.ok()) {
    return status;
  }
  return op;
}

// Calls with the operation, the element type and the number of elements in NCCL's terms.
template <class Call>
Status NcclCommunicator::combine(std::string_view what, const NcclCombination& how,
                                 std::uint64_t elements, const Call& call) {
  const auto reduction = nccl_reduction(how.op, how.dtype);
  if (!reduction) return reduction.status();
  nccl::RedOp op = reduction.value().op;
  const bool scaled = how.scale != 1.0;
  if (scaled) {
    if (how.op != ReduceOp::sum) {
      return Status(ErrorCode::unsupported,
                    str("NCCL scales the inputs of a sum only, not of ", name_of(how.op)));
    }
    auto made = premultiplied_sum(reduction.value(), how.scale);
    if (!made) return made.status();
    op = *made;
  }
  const Status status = enqueue(what, [&](const nccl::Functions& functions) {
    return call(functions, elements * reduction.value().parts, reduction.value().dtype, op);
  });
  // An operation may go as soon as the last call that is given it has returned.
  // Aborting a communicator ends them, too.
  if (const nccl::Comm handle = handle_; scaled && handle != nullptr)
    library_.functions().red_op_destroy(op, handle);
  return status;
}

Status NcclCommunicator::allreduce(const std::byte* input, std::byte* output,
                                   std::uint64_t elements, const NcclCombination& how,
                                   StreamHandle stream) {
  return combine("ncclAllReduce", how, elements,
                 [&](const nccl::Functions& functions, auto count, auto dtype, auto op) {
                   return functions.all_reduce(input, output, count, dtype, op, handle_, stream);
                 });
}

Status NcclCommunicator::reduce(const std::byte* input, std::byte* output, std::uint64_t elements,
                                const NcclCombination& how, int root, StreamHandle stream) {
  return combine("ncclReduce", how, elements,
                 [&](const nccl::Functions& functions, auto count, auto dtype, auto op) {
                   return functions.reduce(input, output, count, dtype, op, root, handle_, stream);
                 });
}

Status NcclCommunicator::reduce_scatter(const std::byte* input, std::byte* output,
                                        std::uint64_t elements, const NcclCombination& how,
                                        StreamHandle stream) {
  return combine("ncclReduceScatter", how, elements,
                 [&](const nccl::Functions& functions, auto count, auto dtype, auto op) {
                   return functions.reduce_scatter(input, output, count, dtype, op, handle_,
                                                   stream);
                 });
}

// What is not computed with travels as bytes, which all types are made of.

Status NcclCommunicator::allgather(const std::byte* input, std::byte* output,
                                   std::uint64_t elements, DataType dtype, StreamHandle stream) {
  return enqueue("ncclAllGather", [&](const nccl::Functions& functions) {
    return functions.all_gather(input, output, elements * size_of(dtype), nccl::uint8, handle_,
                                stream);
  });
}

Status NcclCommunicator::broadcast(const std::byte* input, std::byte* output,
                                   std::uint64_t elements, DataType dtype, int root,
                                   StreamHandle stream) {
  return enqueue("ncclBroadcast", [&](const nccl::Functions& functions) {
    return functions.broadcast(input, output, elements * size_of(dtype), nccl::uint8, root, handle_,
                               stream);
  });
}

Status NcclCommunicator::send(const std::byte* memory, std::uint64_t elements, DataType dtype,
                              int to, StreamHandle stream) {
  return enqueue("ncclSend", [&](const nccl::Functions& functions) {
    return functions.send(memory, elements * size_of(dtype), nccl::uint8, to, handle_, stream);
  });
}

Status NcclCommunicator::recv(std::byte* memory, std::uint64_t elements, DataType dtype, int from,
                              StreamHandle stream) {
  return enqueue("ncclRecv", [&](const nccl::Functions& functions) {
    return functions.recv(memory, elements * size_of(dtype), nccl::uint8, from, handle_, stream);
  });
}

Status NcclCommunicator::alltoall(std::span<const NcclPart> to, std::span<const NcclPart> from,
                                  DataType dtype, StreamHandle stream) {
  const auto size = static_cast<std::size_t>(size_);
  if (to.size() != size || from.size() != size) {
    return Status(ErrorCode::invalid_argument, str("an all-to-all of ", size_, " ranks with ",
                                                   to.size(), " and ", from.size(), " parts"));
  }
  return in_group(size_, [&](int peer) {
    const NcclPart& out = to[static_cast<std::size_t>(peer)];
    const NcclPart& in = from[static_cast<std::size_t>(peer)];
    // Nothing is sent where nothing is expected.
    Status status;
    if (out.elements > 0) status = send(out.memory, out.elements, dtype, peer, stream);
    if (status.ok() && in.elements > 0) status = recv(in.memory, in.elements, dtype, peer, stream);
    return status;
  });
}

Status NcclCommunicator::in_group(int calls, const std::function<Status(int)>& call) {
  if (Status status = begin_group(); !status.ok()) return status;
  Status failure;
  for (int number = 0; number < calls && failure.ok(); ++number) failure = call(number);
  return failure.because(end_group());
}

Status NcclCommunicator::begin_group() {
  return enqueue("ncclGroupStart",
                 [](const nccl::Functions& functions) { return functions.group_start(); });
}

Status NcclCommunicator::end_group() {
  return enqueue("ncclGroupEnd",
                 [](const nccl::Functions& functions) { return functions.group_end(); });
}

}  // namespace rueda
