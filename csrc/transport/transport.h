// Moves bytes between ranks. A transport knows nothing of tensors, names or reductions.
//
// Not thread-safe: every call comes from the thread that holds the engine's progress lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "core/clock.h"
#include "core/status.h"
#include "transport/tag.h"

namespace rueda {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// The state of one transfer, shared by the thread that started it and the transport.
struct Transfer {
  bool done = false;
  Status status;  // meaningful once done
  int peer = -1;  // the other rank
};
using Ticket = std::shared_ptr<Transfer>;

// One per (epoch, world, lane).
//
// Matching: a receive matches the oldest send from `peer` with the same tag that no earlier receive
// has matched. Transfers with equal peer and tag complete in the order in which they were started.
// A send never keeps other tags waiting until its receive is posted: the receiver keeps what
// arrives early. A receiver that does not call progress() makes its senders wait. Their memory does
// not grow: bytes stay with the caller until there is room for them on the way. Lengths must agree;
// a receive whose message has another length fails with ErrorCode::transport.
//
// Failure: fail() for one peer, abort() for all. What has failed stays failed.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Sends the concatenation of `spans`. The bytes must stay unchanged until the ticket is done; the
  // array of spans is not needed after the call. `peer` may be this rank.
  virtual Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) = 0;
  // Receives one message into the concatenation of `spans`.
  virtual Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) = 0;

  // From now on, messages of this operation, whatever their part, go before those of operations
  // with a lower priority, even before the rest of one in progress. Priorities start at 0 and
  // return to 0 when the operation ends. For transports that choose what goes next.
  virtual void set_priority(Tag /*tag*/, std::int32_t /*priority*/) {}

  // Moves whatever can move without blocking; returns whether anything did.
  virtual bool progress() = 0;
  // Whether progress() has left work that it could do at once and that wait_fd() does not show:
  // call it again, even if no transfer of this rank is in flight. The peer may wait for it.
  [[nodiscard]] virtual bool has_work() const { return false; }

  // When to call progress() although nothing of this rank is in flight and nothing announces
  // anything; nullopt: never. Others may still wait for what a library has taken over from this
  // rank, and moves only while it is called (MPI).
  [[nodiscard]] virtual std::optional<Time> next_look() const { return {}; }

  // --- Sleeping
  //
  // The driving thread sleeps on the wake word of its rank (HostRankHeader::wake, where ranks share
  // memory). If wait_fd() is a descriptor, another thread watches it on its behalf.

  // Whether work is in progress that nothing announces, so that progress() has to be called
  // repeatedly (MPI). Changes with every call.
  [[nodiscard]] virtual bool requires_polling() const { return false; }
  // A descriptor that is readable if progress() would do something, or -1 if the transport wakes
  // the wake word or can only be polled. Valid only after arm() has returned true.
  [[nodiscard]] virtual int wait_fd() const { return -1; }
  // Announces that the caller is about to sleep; false if there is something to do that wait_fd()
  // does not show. disarm() follows every arm() that returned true.
  virtual bool arm() = 0;
  virtual void disarm() = 0;
  // Whether what it waits for on wait_fd() is so much that its transfer takes far longer than
  // waking up does: spinning would gain nothing and keep the processor from the ranks and the
  // kernel that move the bytes.
  [[nodiscard]] virtual bool awaits_much() const { return false; }

  // The world ends cleanly: each rank leaves once it has done its part of everything agreed on. So
  // what is in transit to a peer that is gone has arrived, whatever became of its acknowledgement.
  // For transports that retransmit.
  virtual void end_in_order() {}

  // --- Failure

  // Completes every pending and later transfer with `peer` with `why`, and no others. The first
  // reason counts. Afterwards the transport does not touch the buffers of these transfers, except
  // as each class documents. Affects only this side: the peer learns nothing of it.
  virtual void fail(int peer, const Status& why) = 0;
  // The same with all peers.
  virtual void abort(const Status& reason) = 0;
};

}  // namespace rueda
