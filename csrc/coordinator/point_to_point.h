// Messages from one rank to another, matched by process set, sender and tag.
//
// The sender offers a message over the control lane; small ones travel with the offer. The receiver
// fetches a message that it has requested: directly from the sender's memory if the two share a
// host, otherwise it asks the sender to send through the transport. So a sender's memory is
// accessed only while its send is pending, nothing large is ever stored in between, and no message
// waits behind another that nobody has requested.
//
// A receiver stores a bounded amount of small messages that it has not requested (InlineWindow);
// beyond that they are offered like large ones, and their sends wait.
//
// Used only by the owner of the progress lock.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "coordinator/departures.h"
#include "coordinator/inline_window.h"
#include "coordinator/message_stalls.h"
#include "coordinator/open_handle.h"
#include "core/clock.h"
#include "core/status.h"
#include "onehost/host_group.h"
#include "plan/wire.h"
#include "rueda/types.h"
#include "transport/transport.h"

namespace rueda {

// One side of a message as the application submitted it.
struct MessageRequest : WaitingMessage {
  std::byte* data = nullptr;
  OpenHandle handle;

  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(count) * size_of(dtype);
  }
};
static_assert(std::is_nothrow_move_constructible_v<MessageRequest>);

class PointToPoint {
 public:
  using Post = std::function<void(int peer, std::span<const std::byte> message)>;
  using WasRemoved = std::function<bool(int set_id)>;

  // Messages of up to this size travel with their offer, and their send completes at once while the
  // receiver has room: see InlineWindow.
  static constexpr std::size_t inline_bytes = 4096;

  // Keeps references to all arguments. `was_removed`: whether a set existed once and was removed;
  // by default none was. `stalls`: reports what waits for too long; by default nothing is reported.
  PointToPoint(
      const HostGroup& host, Transport& transport, const Departures& departures, Post post,
      WasRemoved was_removed = [](int) { return false; }, MessageStalls* stalls = nullptr);

  PointToPoint(const PointToPoint&) = delete;  // its window refers to it
  PointToPoint& operator=(const PointToPoint&) = delete;

  void submit(MessageRequest request);
  void receive(int peer, std::span<const std::byte> message);
  // Advances without blocking; returns whether anything moved.
  bool step(Time now);

  // Whether bytes are in flight. No rank may leave before they have arrived.
  [[nodiscard]] bool in_flight() const { return !arriving_.empty() || !departing_.empty(); }
  // Whether an answer or an offer is expected at any moment.
  [[nodiscard]] bool expects() const { return !receives_.empty() || !offered_.empty(); }
  [[nodiscard]] bool uses_transport() const;
  [[nodiscard]] std::optional<Time> next_deadline() const;
  // A member of the set has left. Messages between others continue. Only ranks with a connection
  // learn who else leaves, so from now on a receive waits for at most `timeout`.
  void close(int set_id, const Status& reason, Time now, Duration timeout);
  // This rank has left the set, and receives nothing there any more.
  void leave(int set_id);
  void leave_all();
  // This rank leaves cleanly: withdraws its offers, so nobody waits for them. fail_all() follows.
  void withdraw_all();
  // The set has been removed, as `was_removed` returns from now on: refuses what was sent to this
  // rank there and not received.
  void remove(int set_id);
  [[nodiscard]] bool is_closed(int set_id) const { return closed_.contains(set_id); }
  // Nothing more will be requested in this set. Pending requests continue.
  void forget(int set_id);
  // A rank is lost: fails what is in progress with it. Its transfers must have been failed.
  void lose(int rank, const Status& reason);
  // The transport must have been aborted.
  void fail_all(const Status& reason);

 private:
  struct Offer {
    int sender = -1;
    std::uint64_t number = 0;  // number among the sender's messages
    int set_id = 0;
    std::int64_t tag = 0;
    DataType dtype = DataType::float32;
    std::int64_t count = 0;
    std::uint64_t address = 0;         // in the sender's memory
    std::vector<std::byte> content{};  // of a small one
    bool is_inline = false;
  };
  struct Arrival {
    MessageRequest request;
    Offer offer;
    Ticket ticket{};       // through the transport
    int host_rank = -1;    // of the sender, if this rank can read its memory
    std::size_t done = 0;  // bytes read from there
  };
  struct Departure {
    MessageRequest request;
    Ticket ticket{};
  };
  struct Closing {
    Status reason;
    Time receives_end;  // deadline for receives from members not known to have left
    bool forgotten = false;
  };

  void offer(MessageRequest request);
  void match(MessageRequest request, Offer offer);
  void take_offer(int peer, Reader& reader);
  void send_now(std::uint64_t number, Tag tag);
  void finish_send(std::uint64_t number, const Status& status);
  void withdraw(int sender, std::uint64_t number);
  void refuse(const Offer& offer, const Status& why);
  void refuse_offers(int set_id, const Status& why);
  bool advance(Arrival& arrival);
  bool fail_receives(Time now);
  void drop_forgotten();
  bool fail_sends();
  template <class IsConcerned>
  void fail_those(const Status& reason, const IsConcerned& is_concerned);

  const HostGroup& host_;
  Transport& transport_;
  const Departures& departures_;
  const Post post_;
  const WasRemoved was_removed_;
  std::list<MessageRequest> receives_;               // in order of submission
  std::list<Offer> offers_;                          // in order of arrival
  std::map<std::uint64_t, MessageRequest> offered_;  // by number: not yet taken
  std::list<Arrival> arriving_;
  std::list<Departure> departing_;  // through the transport
  std::set<int> left_;              // sets that this rank has left and that still exist
  std::map<int, Closing> closed_;   // by set id
  InlineWindow window_;
  MessageStalls* const stalls_;
  std::uint64_t next_number_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace rueda
