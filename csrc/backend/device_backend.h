// Collectives on tensors in the memory of GPUs. The host arranges the work and does not wait for
// it: an operation is done once all of it has been enqueued.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "core/options.h"

namespace rueda {

// A point in a stream of a GPU. Any thread.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Makes `stream`, of the same device, wait for the event, as cudaStreamWaitEvent() does.
  virtual Status make_stream_wait(void* stream) const = 0;
  // Whether the GPU has come there; an error where its work failed, or was given up before.
  [[nodiscard]] virtual Expected<bool> reached() const = 0;
  // Whether nothing before it touches any memory any more, as far as can be known.
  [[nodiscard]] virtual bool is_over() const = 0;
};

// An allreduce that the application starts itself, as often as it likes, on a stream of its
// own. One thread at a time.
class DeviceReduction {
 public:
  // Waits until the GPU has left the tensor, where a start outside of a graph is under way, however
  // long that takes; once the world is over, for a while.
  virtual ~DeviceReduction() = default;
  // Ok where start() can be called; else why each run has to be an operation of the engine.
  [[nodiscard]] virtual const Status& obstacle() const = 0;
  // Whether `stream` is being captured into a CUDA graph.
  [[nodiscard]] virtual Expected<bool> is_captured(void* stream) const = 0;
  // Begins to enqueue a run on `stream`, or to capture it; advance() goes on. The same number of
  // times, and in the same order among the reductions of a set, on all ranks. An error concerns all
  // ranks.
  virtual Status start(void* stream) = 0;
  // Goes on with that without waiting. Whether all of the run is in its stream; true also where
  // nothing was started.
  virtual Expected<bool> advance() = 0;
  // What has failed since, here or elsewhere.
  [[nodiscard]] virtual Status check() const = 0;
};
using TakeReduction = std::function<void(std::shared_ptr<DeviceReduction>)>;

// Each process set has streams of its own, on the one GPU that this rank uses: that of the first
// tensor that it submits.
class DeviceBackend : public Backend {
 public:
  // What `stream` of the device has enqueued so far. Any thread. Fails where the device cannot be
  // used: without a driver or such a device, while the stream is captured into a graph, or where
  // this rank uses another device.
  virtual Expected<std::shared_ptr<DeviceEvent>> mark(int device, void* stream) = 0;

  // --- For the owner of the progress lock

  // Agrees on an allreduce of `piece` that will be started by the application, and hands it
  // over.
  virtual std::unique_ptr<Operation> persist(const Lane& lane, const Reduction& reduction,
                                             Piece piece, TakeReduction take) = 0;
  // Some ranks have to allocate() what the operation that is made next writes: it begins only where
  // all of them have got it, and fails on all of them where one has not. An all-to-all, whose sizes
  // are not known before, arranges that itself.
  virtual void agree_on_results() = 0;
  // The operation that is made next comes after `event`.
  virtual void await(std::shared_ptr<DeviceEvent> event) = 0;
  // Looks after what the GPU has not finished yet. Not ok: it failed, or was not finished in time.
  [[nodiscard]] virtual Status watch(Time now) = 0;
  // When to call it again though nothing happens.
  [[nodiscard]] virtual std::optional<Time> next_look() const = 0;
  // The process set has ended.
  virtual void forget(int set_id) = 0;
  // Ends what is under way, so that no stream waits for ever, and waits until nothing reaches the
  // memory of what has not completed; some 10 s where that cannot be had. Afterwards nothing is
  // started.
  virtual void abort(const Status& reason) = 0;
  // Leaves in good order, together with the other ranks. Afterwards nothing is started.
  virtual void close() = 0;
};

// Loads nothing before the first mark(). `host` moves what no GPU does, and outlives it.
[[nodiscard]] std::unique_ptr<DeviceBackend> make_device_backend(const Options& options,
                                                                 Backend& host);

}  // namespace rueda
