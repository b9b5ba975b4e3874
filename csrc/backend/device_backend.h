// Collectives on tensors in GPU memory. The host arranges the work and does not wait for it: an
// operation is done once all its work has been enqueued.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "core/options.h"

namespace rueda {

// A point in a GPU stream. Thread-safe.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Makes `stream`, of the same device, wait for the event, as cudaStreamWaitEvent() does.
  virtual Status make_stream_wait(void* stream) const = 0;
  // Whether the GPU has reached the event; an error if the work failed or was given up before.
  [[nodiscard]] virtual Expected<bool> reached() const = 0;
  // Whether, as far as can be known, no work before it still accesses memory.
  [[nodiscard]] virtual bool is_over() const = 0;
};

// An allreduce that the application starts itself, as often as it likes, on a stream of its own.
// Not thread-safe.
class DeviceReduction {
 public:
  // If a start outside a graph is in progress, waits until the GPU no longer uses the tensor,
  // however long that takes; once the world has ended, waits for a limited time.
  virtual ~DeviceReduction() = default;
  // Ok if start() may be called; otherwise why each run has to go through the engine.
  [[nodiscard]] virtual const Status& obstacle() const = 0;
  // Whether `stream` is being captured into a CUDA graph.
  [[nodiscard]] virtual Expected<bool> is_captured(void* stream) const = 0;
  // Begins to enqueue or capture a run on `stream`; advance() continues it. All ranks must start
  // the reductions of a set equally often and in the same order. An error affects all ranks.
  virtual Status start(void* stream) = 0;
  // Continues the start without waiting. True once the whole run is in its stream, or if nothing
  // was started.
  virtual Expected<bool> advance() = 0;
  // Errors since then, on this rank or elsewhere.
  [[nodiscard]] virtual Status check() const = 0;
};
using TakeReduction = std::function<void(std::shared_ptr<DeviceReduction>)>;

// Each process set has its own streams on the one GPU that this rank uses, which is that of the
// first tensor it submits.
class DeviceBackend : public Backend {
 public:
  // Marks what `stream` of `device` has enqueued so far. Thread-safe. Fails if the device cannot be
  // used: there is no driver or no such device, the stream is being captured into a graph, or this
  // rank uses another device.
  virtual Expected<std::shared_ptr<DeviceEvent>> mark(int device, void* stream) = 0;

  // --- For the owner of the progress lock only

  // Agrees with the other ranks on an allreduce of `piece` that the application will start, and
  // passes it to `take`.
  virtual std::unique_ptr<Operation> persist(const Lane& lane, const Reduction& reduction,
                                             Piece piece, TakeReduction take) = 0;
  // The next operation writes memory that some ranks must allocate() first. It begins only if all
  // of them have it; otherwise it fails on all ranks. An all-to-all arranges this itself, since its
  // sizes are not known in advance.
  virtual void agree_on_results() = 0;
  // The next operation runs after `event`.
  virtual void await(std::shared_ptr<DeviceEvent> event) = 0;
  // Checks on work that the GPU has not finished. Not ok: the work failed or timed out.
  [[nodiscard]] virtual Status watch(Time now) = 0;
  // When to call watch() again even if nothing happens.
  [[nodiscard]] virtual std::optional<Time> next_look() const = 0;
  // The process set has ended.
  virtual void forget(int set_id) = 0;
  // Aborts what is in progress, so that no stream waits forever, and waits until nothing accesses
  // the memory of incomplete operations; gives up on that after some 10 s. Nothing is started
  // afterwards.
  virtual void abort(const Status& reason) = 0;
  // Shuts down cleanly, together with the other ranks. Nothing is started afterwards.
  virtual void close() = 0;
};

// Loads nothing before the first mark(). `host` moves data in host memory and must outlive the
// backend.
[[nodiscard]] std::unique_ptr<DeviceBackend> make_device_backend(const Options& options,
                                                                 Backend& host);

}  // namespace rueda
