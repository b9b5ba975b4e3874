// A communicator of NCCL over the ranks of a process set, one GPU each. NCCL is called by a thread
// of the communicator's own, so that no other waits for other ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "backend/nccl/library.h"
#include "core/clock.h"
#include "core/status.h"
#include "cuda/device.h"
#include "cuda/handles.h"
#include "rueda/types.h"

namespace rueda {

// How elements are combined: a sum, a product, a minimum or a maximum. NCCL's averages and scaled
// sums keep it from its fastest kernels (NVLS, and symmetric ones before 2.30), and are not used.
struct NcclCombination {
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::sum;
};

// Elements from or for one rank.
struct NcclPart {
  std::byte* memory = nullptr;
  std::uint64_t elements = 0;
};

// Every collective must be called by all ranks, in the same order and with the same arguments. It
// only enqueues work on a stream of the device; the result is there when the stream is. Memory
// belongs to the device and must stay valid until then. Input and output may be the same memory.
//
// A call returns at once. Until poll() tells that the communicator is ready, the work is not in the
// stream, so no event may be recorded for it, and no other call but abort() be made. What NCCL
// returns, poll() does.
//
//     auto id = library.unique_id();  // on one rank, and handed to the others
//     auto communicator = NcclCommunicator::start(library, device, *id, rank, size);
//     status = (*communicator)->wait_until_ready(deadline);
//     status = (*communicator)->allreduce(input, output, n, {DataType::float32}, stream);
//     status = (*communicator)->wait_until_ready(deadline);
class NcclCommunicator {
 public:
  // Begins to connect; poll() tells when all ranks have come.
  [[nodiscard]] static Expected<std::unique_ptr<NcclCommunicator>> start(const NcclLibrary& library,
                                                                         DeviceReference device,
                                                                         const nccl::UniqueId& id,
                                                                         int rank, int size);
  // Gives up what is in flight, unless close() has been called.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] int size() const;
  // A call has not returned: poll() would say false. Costs nothing.
  [[nodiscard]] bool is_busy() const;

  // Whether NCCL has done what it was called for. An error, with NCCL's own words, once anything of
  // this communicator has failed, also on another rank or long after the call: then only abort()
  // helps.
  [[nodiscard]] Expected<bool> poll() const;
  // Waits until then; ErrorCode::timeout at the deadline.
  [[nodiscard]] Status wait_until_ready(Time deadline) const;

  // What the next call comes between in the thread that makes it, where the device is current
  // already; an error of either is that of the call. Nothing comes after a call that fails, nor
  // once this has been given up. They must own what they use, or that must outlive abort().
  struct Frame {
    std::function<Status()> before;
    std::function<Status()> after;
  };
  void frame_next_call(Frame frame) { frame_ = std::move(frame); }

  [[nodiscard]] Status allreduce(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 const NcclCombination& how, StreamHandle stream);
  // input: size() times `elements`; output: this rank's `elements`.
  [[nodiscard]] Status reduce_scatter(const std::byte* input, std::byte* output,
                                      std::uint64_t elements, const NcclCombination& how,
                                      StreamHandle stream);
  // The same with `elements` for each rank: one reduction to each, all in one group.
  [[nodiscard]] Status reduce_scatter(const std::byte* input, std::byte* output,
                                      std::span<const std::int64_t> elements,
                                      const NcclCombination& how, StreamHandle stream);
  // As many elements of each rank; any element type. output: size() times `elements`.
  [[nodiscard]] Status allgather(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 DataType dtype, StreamHandle stream);
  [[nodiscard]] Status broadcast(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 DataType dtype, int root, StreamHandle stream);
  // To and from each rank, in any numbers that agree; what this rank sends itself is copied too.
  // Also an allgather of different lengths: the same part to everybody. All in one group.
  [[nodiscard]] Status alltoall(std::span<const NcclPart> to, std::span<const NcclPart> from,
                                DataType dtype, StreamHandle stream);

  // Tells NCCL that this memory, of NCCL's own (ncclMemAlloc) and of the same size on all ranks,
  // which call this together, will be used again and again: as a window, on which NCCL's symmetric
  // kernels work, or where the GPUs cannot reach each other so, registered. Free it after close()
  // or abort(), which end that.
  [[nodiscard]] Status register_memory(std::byte* memory, std::size_t bytes);

  // --- Ends everything on this rank without asking the others. From any state, and again. NCCL
  // releases the streams first; then it waits for what else the GPU does, and for the end of all
  // CUDA graphs that have captured anything of this communicator. A thread of its own does so. A
  // collective that NCCL does not return from is ended with it; connecting and leaving, which NCCL
  // cannot be called out of without a second thread using what the first one frees, are left to
  // themselves: they end with the processes that they wait for.

  // Does not wait, so that several can be given up at once where their kernels wait for each other.
  void begin_abort();
  // Waits until all is released; no longer than 10 s from the beginning, or than 1 s after
  // expect_late_end(). Then the thread is left to itself.
  void abort();
  // A graph will hold this communicator. Any thread.
  void expect_late_end() { ends_late_.store(true); }

  // Releases the communicator, all ranks together, once all graphs that have captured it are gone.
  // What was enqueued must be done. On error it is aborted; at the deadline left to a thread.
  [[nodiscard]] Status close(Time deadline);

 private:
  // What the threads that end a communicator share with it, and may outlive it with.
  struct Shared;
  // Of one call, in the launch thread.
  class Api;
  using Call = std::function<Status(const Api&)>;

  explicit NcclCommunicator(std::shared_ptr<Shared> shared);

  [[nodiscard]] Status post(Call call);
  template <class Function>
  Status combine(std::string_view what, const NcclCombination& how, Function call);
  [[nodiscard]] Status refused_if_closed() const;
  static Status leave(Shared& shared);

  std::shared_ptr<Shared> shared_;
  Frame frame_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> ends_late_{false};
  // --- Of begin_abort(), until it has been waited for
  std::thread thread_;
  std::future<void> ending_;
  Time wait_timeout_{};
};

}  // namespace rueda
