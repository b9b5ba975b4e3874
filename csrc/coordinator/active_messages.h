// Messages of the control plane by kind; each kind has a handler at the receiving rank. Messages
// that no handler accepts (unknown kind, malformed, too long) are counted and dropped: nobody waits
// for them, and no peer can end this rank with one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "coordinator/metrics.h"
#include "transport/control_lane.h"

namespace rueda {

enum class ControlMessage : std::uint8_t {
  negotiation,     // within a process set
  failure,         // the world of the sender is broken
  loss,            // a rank is lost; the world goes on without it
  point_to_point,  // offers and answers of messages between two ranks
  question,        // whether the receiver is alive; answered at once
  answer,          // to a question
  where,           // where the application of the receiver is, which others wait for
  whereabouts,     // the answer to `where`
  table_request,   // to the owner of a shard of a table
  table_answer,    // from that owner
};
inline constexpr std::size_t control_messages = 10;

class ActiveMessages {
 public:
  // Returns whether the message was well-formed. Called within progress() of the lane.
  using Handler = std::function<bool(int peer, std::span<const std::byte> payload)>;

  // From now on receives all messages of the lane. Keeps references to both.
  ActiveMessages(ControlLane& lane, Metrics& metrics);
  ActiveMessages(const ActiveMessages&) = delete;
  ActiveMessages& operator=(const ActiveMessages&) = delete;

  // Call before the first progress().
  void handle(ControlMessage kind, Handler handler);
  // Queues a message; never blocks. Ordered like ControlLane::post().
  void send(int peer, ControlMessage kind, std::span<const std::byte> payload);

 private:
  void receive(int peer, std::span<const std::byte> message);

  ControlLane& lane_;
  Metrics& metrics_;
  std::array<Handler, control_messages> handlers_;
};

}  // namespace rueda
