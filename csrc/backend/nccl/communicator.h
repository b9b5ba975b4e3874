// An NCCL communicator over the ranks of a process set, one GPU each. The communicator's own thread
// calls NCCL, so that no other thread waits for other ranks.
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

// Combines elements by sum, product, minimum or maximum. NCCL's averages and scaled sums are not
// used, since they rule out its fastest kernels (NVLS, and symmetric ones before 2.30).
struct NcclCombination {
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::sum;
};

// Elements sent to or received from one rank.
struct NcclPart {
  std::byte* memory = nullptr;
  std::uint64_t elements = 0;
};

// All ranks must call every collective, in the same order and with the same arguments. A call only
// enqueues work on a stream of the device; the result is available when the stream gets there.
// Memory belongs to the device and must stay valid until then. Input and output may be the same.
//
// A call returns immediately. Until poll() reports that the communicator is ready, the work is not
// in the stream: no event may be recorded for it, and no call other than abort() made. poll()
// returns what NCCL returned.
//
//     auto id = library.unique_id();  // on one rank, which passes it to the others
//     auto communicator = NcclCommunicator::start(library, device, *id, rank, size);
//     status = (*communicator)->wait_until_ready(deadline);
//     status = (*communicator)->allreduce(input, output, n, {DataType::float32}, stream);
//     status = (*communicator)->wait_until_ready(deadline);
class NcclCommunicator {
 public:
  // Begins to connect; poll() says when all ranks have connected.
  [[nodiscard]] static Expected<std::unique_ptr<NcclCommunicator>> start(const NcclLibrary& library,
                                                                         DeviceReference device,
                                                                         const nccl::UniqueId& id,
                                                                         int rank, int size);
  // Aborts what is in flight, unless close() was called.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] int size() const;
  // A call has not returned, so poll() would return false. Costs nothing.
  [[nodiscard]] bool is_busy() const;

  // Whether NCCL has completed the call. Returns an error, in NCCL's words, once anything of this
  // communicator has failed, even on another rank or long after the call. Then only abort() helps.
  [[nodiscard]] Expected<bool> poll() const;
  // Waits for poll() to be true; ErrorCode::timeout at the deadline.
  [[nodiscard]] Status wait_until_ready(Time deadline) const;

  // Runs before and after the next call, in the thread that makes it and with the device current.
  // An error from either becomes the call's error. `after` is skipped if the call fails or the
  // communicator has been given up. The functions must own what they use, or it must outlive
  // abort().
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
  // The same with `elements[r]` for rank r: one reduction per rank, in one group.
  [[nodiscard]] Status reduce_scatter(const std::byte* input, std::byte* output,
                                      std::span<const std::int64_t> elements,
                                      const NcclCombination& how, StreamHandle stream);
  // The same number of elements from each rank, of any type. output: size() times `elements`.
  [[nodiscard]] Status allgather(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 DataType dtype, StreamHandle stream);
  [[nodiscard]] Status broadcast(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 DataType dtype, int root, StreamHandle stream);
  // Sends to and receives from each rank; counts must match. Also copies what this rank sends to
  // itself. With the same part for every rank, an allgather of different lengths. All in one group.
  [[nodiscard]] Status alltoall(std::span<const NcclPart> to, std::span<const NcclPart> from,
                                DataType dtype, StreamHandle stream);

  // Tells NCCL that this memory, from ncclMemAlloc and of the same size on all ranks, which call
  // this together, will be reused. It becomes a window, for NCCL's symmetric kernels, or is
  // registered if the GPUs cannot reach each other that way. Free it only after close() or abort(),
  // which undo this.
  [[nodiscard]] Status register_memory(std::byte* memory, std::size_t bytes);

  // --- Ends everything on this rank without asking the others. Allowed in any state, and
  // repeatedly. A separate thread does it: NCCL releases the streams first, then waits for the
  // GPU's other work and for the destruction of all CUDA graphs that captured this communicator. A
  // collective that NCCL does not return from is aborted. Connecting and closing cannot be
  // interrupted without a second thread using what the first one frees; these are abandoned, and
  // end with the processes they wait for.

  // Does not wait, so that several communicators whose kernels wait for each other can be aborted
  // together.
  void begin_abort();
  // Waits until everything is released, for at most 10 s from the beginning, or 1 s after
  // expect_late_end(). After that the thread is abandoned.
  void abort();
  // A graph will hold this communicator. Thread-safe.
  void expect_late_end() { ends_late_.store(true); }

  // Releases the communicator, on all ranks together, once all graphs that captured it are gone.
  // Enqueued work must be done. Aborts on error; at the deadline, leaves the rest to a thread.
  [[nodiscard]] Status close(Time deadline);

 private:
  // State shared with the threads that end a communicator; may outlive it with them.
  struct Shared;
  // The NCCL functions for one call, in the launch thread.
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
  // --- State of begin_abort() until it has been waited for
  std::thread thread_;
  std::future<void> ending_;
  Time wait_timeout_{};
};

}  // namespace rueda
