#include "backend/nccl/communicator.h"

#include "backend/nccl/communicator_state.h"

namespace rueda {

// The call runs in the launch thread, so it holds everything it needs by value.
Status NcclCommunicator::post(Call call) {
  if (Status status = refused_if_closed(); !status.ok()) return status;
  Shared& shared = *shared_;
  if (!shared.launch.is_idle())
    return {ErrorCode::internal, shared.with_rank("NCCL was called while it was busy")};
  if (!shared.failure.ok()) return shared.failure;
  shared.stage.store(Shared::Stage::call);
  shared.launch.post(
      [&shared, call = std::move(call), frame = std::exchange(frame_, {})](const Status& current) {
        shared.failure = current;
        if (shared.failure.ok() && frame.before) shared.failure = frame.before();
        if (shared.failure.ok()) shared.failure = call(Api(shared));
        if (shared.failure.ok() && frame.after && !shared.is_given_up.load())
          shared.failure = frame.after();
      });
  return {};
}

// Calls `call` with NCCL's operation, its element type, and the number of those per element.
template <class Function>
Status NcclCommunicator::combine(std::string_view what, const NcclCombination& how, Function call) {
  const auto reduction = nccl_reduction(how.op, how.dtype);
  if (!reduction) return reduction.status();
  return post([what, call = std::move(call), reduction = *reduction](const Api& nccl) {
    return nccl.check(call(nccl, reduction), what);
  });
}

Status NcclCommunicator::allreduce(const std::byte* input, std::byte* output,
                                   std::uint64_t elements, const NcclCombination& how,
                                   StreamHandle stream) {
  return combine("ncclAllReduce", how, [=](const Api& nccl, const NcclReduction& by) {
    return nccl.functions.all_reduce(input, output, elements * by.parts, by.dtype, by.op,
                                     nccl.handle(), stream);
  });
}

Status NcclCommunicator::reduce_scatter(const std::byte* input, std::byte* output,
                                        std::uint64_t elements, const NcclCombination& how,
                                        StreamHandle stream) {
  return combine("ncclReduceScatter", how, [=](const Api& nccl, const NcclReduction& by) {
    return nccl.functions.reduce_scatter(input, output, elements * by.parts, by.dtype, by.op,
                                         nccl.handle(), stream);
  });
}

Status NcclCommunicator::reduce_scatter(const std::byte* input, std::byte* output,
                                        std::span<const std::int64_t> elements,
                                        const NcclCombination& how, StreamHandle stream) {
  if (elements.size() != static_cast<std::size_t>(size())) {
    return {ErrorCode::invalid_argument,
            str("a reduce-scatter of ", size(), " ranks with ", elements.size(), " parts")};
  }
  const auto reduction = nccl_reduction(how.op, how.dtype);
  if (!reduction) return reduction.status();
  std::vector<std::int64_t> lengths(elements.begin(), elements.end());
  return post([=, lengths = std::move(lengths), by = *reduction,
               bytes = size_of(how.dtype)](const Api& nccl) {
    return nccl.in_group([&] {
      const std::byte* part = input;
      Status status;
      for (std::size_t root = 0; root < lengths.size() && status.ok(); ++root) {
        const auto length = static_cast<std::uint64_t>(lengths[root]);
        if (length > 0) {
          status =
              nccl.check(nccl.functions.reduce(part, output, length * by.parts, by.dtype, by.op,
                                               static_cast<int>(root), nccl.handle(), stream),
                         "ncclReduce");
        }
        part += length * bytes;
      }
      return status;
    });
  });
}

// Data that is only moved is sent as bytes.

Status NcclCommunicator::allgather(const std::byte* input, std::byte* output,
                                   std::uint64_t elements, DataType dtype, StreamHandle stream) {
  return post([=, bytes = elements * size_of(dtype)](const Api& nccl) {
    return nccl.check(
        nccl.functions.all_gather(input, output, bytes, nccl::uint8, nccl.handle(), stream),
        "ncclAllGather");
  });
}

Status NcclCommunicator::broadcast(const std::byte* input, std::byte* output,
                                   std::uint64_t elements, DataType dtype, int root,
                                   StreamHandle stream) {
  return post([=, bytes = elements * size_of(dtype)](const Api& nccl) {
    return nccl.check(
        nccl.functions.broadcast(input, output, bytes, nccl::uint8, root, nccl.handle(), stream),
        "ncclBroadcast");
  });
}

Status NcclCommunicator::alltoall(std::span<const NcclPart> to, std::span<const NcclPart> from,
                                  DataType dtype, StreamHandle stream) {
  const auto ranks = static_cast<std::size_t>(size());
  if (to.size() != ranks || from.size() != ranks) {
    return Status(ErrorCode::invalid_argument, str("an all-to-all of ", ranks, " ranks with ",
                                                   to.size(), " and ", from.size(), " parts"));
  }
  return post([stream, bytes = size_of(dtype), to = std::vector(to.begin(), to.end()),
               from = std::vector(from.begin(), from.end())](const Api& nccl) {
    return nccl.in_group([&] {
      // Nothing is sent where nothing is expected.
      Status status;
      for (std::size_t rank = 0; rank < to.size() && status.ok(); ++rank) {
        const NcclPart& out = to[rank];
        const NcclPart& in = from[rank];
        const int peer = static_cast<int>(rank);
        if (out.elements > 0) {
          status = nccl.check(nccl.functions.send(out.memory, out.elements * bytes, nccl::uint8,
                                                  peer, nccl.handle(), stream),
                              "ncclSend");
        }
        if (in.elements > 0 && status.ok()) {
          status = nccl.check(nccl.functions.recv(in.memory, in.elements * bytes, nccl::uint8, peer,
                                                  nccl.handle(), stream),
                              "ncclRecv");
        }
      }
      return status;
    });
  });
}

Status NcclCommunicator::register_memory(std::byte* memory, std::size_t bytes) {
  return post([memory, bytes, &all = shared_->registrations](const Api& nccl) {
    Shared::Registration made;
    Status status = nccl.check(nccl.functions.window_register(nccl.handle(), memory, bytes,
                                                              &made.window, nccl::window_symmetric),
                               "ncclCommWindowRegister");
    if (status.ok() && made.window == nullptr) {
      status = nccl.check(nccl.functions.comm_register(nccl.handle(), memory, bytes, &made.buffer),
                          "ncclCommRegister");
    }
    if (status.ok()) all.push_back(made);
    return status;
  });
}

}  // namespace rueda
