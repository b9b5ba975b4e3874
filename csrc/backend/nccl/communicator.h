// A communicator of NCCL over the ranks of a process set, one GPU each. It never blocks a thread
// for longer than it is told to: NCCL does its slow work on threads of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <thread>

#include "backend/nccl/library.h"
#include "core/clock.h"
#include "core/status.h"
#include "cuda/device.h"
#include "cuda/handles.h"
#include "rueda/types.h"

namespace rueda {

// How elements are combined: `scale` multiplies each input first, as a pre-multiplied sum (of
// floating-point types, `sum` only; a scaled average is a sum scaled by 1 / size).
struct NcclCombination {
  DataType dtype = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  double scale = 1.0;
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
// NCCL may go on setting up connections behind a call: until poll() tells that the communicator is
// ready, the work is not in the stream, so no event may be recorded for it, and no other call but
// abort() be made.
//
//     auto id = library.unique_id();  // on one rank, and handed to the others
//     auto communicator = NcclCommunicator::start(library, device, *id, rank, size);
//     status = (*communicator)->wait_until_ready(deadline);
//     status = (*communicator)->allreduce(input, output, n, {DataType::float32}, stream);
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

  [[nodiscard]] int size() const { return size_; }

  // Whether NCCL has done what it was called for. An error, with NCCL's own words, once anything of
  // this communicator has failed, also on another rank or long after the call: then only abort()
  // helps.
  [[nodiscard]] Expected<bool> poll() const;
  // Polls until then; ErrorCode::timeout at the deadline.
  [[nodiscard]] Status wait_until_ready(Time deadline) const;

  [[nodiscard]] Status allreduce(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 const NcclCombination& how, StreamHandle stream);
  // Only the root's output is written.
  [[nodiscard]] Status reduce(const std::byte* input, std::byte* output, std::uint64_t elements,
                              const NcclCombination& how, int root, StreamHandle stream);
  // input: size() times `elements`; output: this rank's `elements`.
  [[nodiscard]] Status reduce_scatter(const std::byte* input, std::byte* output,
                                      std::uint64_t elements, const NcclCombination& how,
                                      StreamHandle stream);
  // As many elements of each rank; any element type. output: size() times `elements`.
  [[nodiscard]] Status allgather(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 DataType dtype, StreamHandle stream);
  [[nodiscard]] Status broadcast(const std::byte* input, std::byte* output, std::uint64_t elements,
                                 DataType dtype, int root, StreamHandle stream);
  // To and from each rank, in any numbers that agree; what this rank sends itself is copied too.
  // Also an allgather of different lengths: the same part to everybody. All in one group.
  [[nodiscard]] Status alltoall(std::span<const NcclPart> to, std::span<const NcclPart> from,
                                DataType dtype, StreamHandle stream);
  [[nodiscard]] Status send(const std::byte* memory, std::uint64_t elements, DataType dtype, int to,
                            StreamHandle stream);
  [[nodiscard]] Status recv(std::byte* memory, std::uint64_t elements, DataType dtype, int from,
                            StreamHandle stream);

  // Launches call(0), call(1), ... together, as one. A group that fails is given up as a whole.
  [[nodiscard]] Status in_group(int calls, const std::function<Status(int)>& call);

  // Tells NCCL that this memory will be used again and again, so that it is reached directly. A
  // null handle where this NCCL does not offer it, which is no error. Deregister before freeing.
  [[nodiscard]] Expected<void*> register_buffer(std::byte* memory, std::size_t bytes);
  [[nodiscard]] Status deregister_buffer(void* handle);
  // The same for memory from ncclMemAlloc, of the same size on all ranks, which call this together:
  // NCCL's symmetric kernels (2.27). Null where this NCCL does not offer it; else where NCCL writes
  // the window, which is there once poll() says so: null where their GPUs cannot reach each other
  // so, on all ranks as long as NCCL is set up alike on all.
  [[nodiscard]] Expected<const nccl::Window*> register_window(std::byte* memory, std::size_t bytes);
  [[nodiscard]] Status deregister_window(nccl::Window window);

  // --- Ends everything on this rank without asking the others. From any state, and again. NCCL
  // releases the streams first; then it waits for what else the GPU does, and for the end of all
  // CUDA graphs that have captured anything of this communicator. A thread of its own does so.

  // Does not wait, so that several can be given up at once where their kernels wait for each other.
  void begin_abort();
  // Waits until all is released; no longer than 10 s from the beginning, or than 1 s after
  // expect_late_end(). Then the thread is left to itself.
  void abort();
  // A graph will hold this communicator, or a call to NCCL does not return. Any thread.
  void expect_late_end() { ends_late_.store(true); }

  // Waits until all that was enqueued is done, and all graphs that have captured it are gone, and
  // releases the communicator; all ranks together. On error or at the deadline it is aborted.
  [[nodiscard]] Status close(Time deadline);

 private:
  NcclCommunicator(const NcclLibrary& library, DeviceReference device, int rank, int size);

  [[nodiscard]] Status begin_group();
  [[nodiscard]] Status end_group();
  // Calls with the device current and NCCL's functions; the error names the function and this rank.
  template <class Call>
  Status enqueue(std::string_view what, const Call& call);
  template <class Call>
  Status combine(std::string_view what, const NcclCombination& how, std::uint64_t elements,
                 const Call& call);
  Expected<nccl::RedOp> premultiplied_sum(const NcclReduction& reduction, double scale);
  [[nodiscard]] std::string with_rank(std::string_view what) const;
  Status refused_if_closed() const;

  // What NCCL writes from a thread of its own, until it is ready or has released the communicator.
  struct Written {
    std::deque<nccl::Window> windows;
  };

  const NcclLibrary& library_;
  DeviceReference device_;
  std::atomic<nccl::Comm> handle_{nullptr};
  std::shared_ptr<Written> written_ = std::make_shared<Written>();
  std::atomic<bool> ends_late_{false};
  // --- Of begin_abort(), until it has been waited for
  std::thread thread_;
  std::future<void> ending_;
  Time wait_timeout_{};
  int rank_;
  int size_;
};

template <class Call>
Status NcclCommunicator::enqueue(std::string_view what, const Call& call) {
  if (Status status = refused_if_closed(); !status.ok()) return status;
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  const nccl::Result result = call(library_.functions());
  if (result == nccl::success || result == nccl::in_progress) return {};
  return library_.check(result, with_rank(what), handle_);
}

}  // namespace rueda
