// Moves bytes between ranks. A transport knows nothing of tensors, names or reductions.
//
// Not thread-safe: every call comes from the thread that holds the engine's progress lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/status.h"
#include "transport/tag.h"

namespace rueda {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// The state of one transfer, shared by whoever started it and the transport.
struct Transfer {
  bool done = false;
  Status status;  // meaningful once done
  int peer = -1;  // the other rank
};
using Ticket = std::shared_ptr<Transfer>;

// One per (epoch, world, lane).
//
// Matching: a receive matches the oldest send from `peer` with the same tag that no earlier receive
// has matched. Transfers with equal peer and tag complete in the order they were started.
// A send never waits for its receive to be posted before other tags can move: what arrives early is
// kept by the receiver. A receiver that does not call progress() keeps its senders waiting, whose
// memory does not grow: bytes stay with the caller until there is room for them on the way.
// Lengths must agree; a receive whose message has another length fails with ErrorCode::transport.
//
// Failure: of one peer by fail(), of all by abort(). What has failed stays so.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Sends the concatenation of `spans`. The bytes must stay unchanged until the ticket is done.
  // `peer` may be this rank. The array of spans itself may go as soon as the call returns.
  virtual Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) = 0;
  // Receives one message into the concatenation of `spans`.
  virtual Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) = 0;

  // Messages of this operation, whatever their part, that are sent from now on go before those of
  // operations with a lesser priority, also before the rest of one that is on its way; 0 for each
  // to begin with, and again once it is over. For transports that choose what goes next.
  virtual void set_priority(Tag /*tag*/, std::int32_t /*priority*/) {}

  // Moves whatever can move without blocking; returns whether anything did.
  virtual bool progress() = 0;

  // --- Sleeping
  //
  // Whoever drives sleeps on the wake word of its rank (HostRankHeader::wake, where ranks share
  // memory). Where wait_fd() is a descriptor, somebody watches that for him.

  // Whether something is under way that nothing announces, so that progress() has to be called
  // again and again (MPI). It changes with every call.
  [[nodiscard]] virtual bool requires_polling() const { return false; }
  // A descriptor that is readable when progress() would do something, or -1 where the wake word is
  // woken or the transport can only be polled. It is trustworthy only after arm() has returned
  // true.
  [[nodiscard]] virtual int wait_fd() const { return -1; }
  // Announces that the caller is about to sleep; false when there is something to do that wait_fd()
  // does not show.
  // disarm() follows every arm() that returned true.
  virtual bool arm() = 0;
  virtual void disarm() = 0;

  // The world ends in good order: each rank leaves once its part of all that was agreed on is done.
  // So what is under way to a peer that is not there any more has arrived, whatever became of its
  // receipt. For transports that send again what was not acknowledged.
  virtual void end_in_order() {}

  // --- Failure

  // Completes every pending transfer with `peer`, and every later one, with `why`, and none with
  // others. The first reason counts. Afterwards the transport touches no buffer of these transfers
  // any more, but for what each class says of itself. Concerns this side alone: the peer learns
  // nothing of it.
  virtual void fail(int peer, const Status& why) = 0;
  // The same with all peers.
  virtual void abort(const Status& reason) = 0;
};

}  // namespace rueda
