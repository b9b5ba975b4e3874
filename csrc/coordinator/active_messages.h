// Messages of the control plane by kind: each has a handler at the rank that receives it. What no
// handler takes (an unknown kind, a malformed or too long message) is counted and dropped: nobody
// waits for it, and no peer can end this rank with it.
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
  question,        // whether the receiver is there; answered at once
  answer,          // to a question
  where,           // where the receiver's application is, which others wait for
  whereabouts,     // the answer to that
  table_request,   // to the owner of a part of a table
  table_answer,    // of that owner
};
inline constexpr std::size_t control_messages = 10;

class ActiveMessages {
 public:
  // Returns whether the message was what it has to be. Called within progress() of the lane.
  using Handler = std::function<bool(int peer, std::span<const std::byte> payload)>;

  // Takes all messages of the lane from now on. Both are referred to.
  ActiveMessages(ControlLane& lane, Metrics& metrics);
  ActiveMessages(const ActiveMessages&) = delete;
  ActiveMessages& operator=(const ActiveMessages&) = delete;

  // Before the first progress().
  void handle(ControlMessage kind, Handler handler);
  // Queues a message; never blocks. In order, as ControlLane::post().
  void send(int peer, ControlMessage kind, std::span<const std::byte> payload);

 private:
  void receive(int peer, std::span<const std::byte> message);

  ControlLane& lane_;
  Metrics& metrics_;
  std::array<Handler, control_messages> handlers_;
};

}  // namespace rueda
