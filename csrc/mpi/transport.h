// Moves bulk data between ranks with MPI's point-to-point messages.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "core/clock.h"
#include "mpi/communicator.h"
#include "mpi/message_streams.h"
#include "mpi/requests.h"
#include "transport/transport.h"

namespace rueda::mpi {

// A message is received only once its length is known (MPI_Improbe): Open MPI writes beyond the
// buffer of a posted receive if the message turns out longer. This also leaves MPI with nothing
// that abort() would have to take back, except messages arriving at that moment.
//
// A message travels in pieces: any number of full ones of `piece_size` bytes, and a last, shorter
// one, which may be empty. MPI transfers the pieces of a stream in order but completes them in any
// order.
//
// MPI cannot take back what it was given. After fail() and abort() it may still read data that was
// to be sent, and write messages that were arriving then and did not complete within 100 ms; a
// warning reports these.
class MpiTransport final : public Transport {
 public:
  // MPI counts bytes with an int.
  static constexpr std::size_t default_piece_size = std::size_t{1} << 30;

  explicit MpiTransport(Communicator communicator, std::size_t piece_size = default_piece_size);
  // Never waits: a communicator with anything left on it is abandoned to MPI.
  ~MpiTransport() override;

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return communicator_.rank(); }
  [[nodiscard]] int size() const override { return communicator_.size(); }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override;
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override;
  bool progress() override;
  [[nodiscard]] bool requires_polling() const override {
    return !requests_.empty() || !streams_.awaited().empty();
  }
  [[nodiscard]] std::optional<Time> next_look() const override { return next_look_; }
  bool arm() override { return !requires_polling(); }
  void disarm() override {}
  void fail(int peer, const Status& why) override;
  void abort(const Status& reason) override;

 private:
  // A piece that came before its receive.
  struct Arrival {
    MPI_Message message;
    std::size_t length;
  };
  using Streams = MessageStreams<Arrival>;
  using Stream = Streams::Stream;
  using Message = Streams::Message;

  bool move_requests();
  void look_at_mpi();
  void send_pieces(Message& message);
  bool collect_arrivals();
  bool collect_arrivals_from(int peer);
  void assign_arrivals(Stream& stream);
  void receive_piece(Message& message, Arrival arrival);
  void fail_receives_from(int peer, int code);

  template <class Start>
  void start_piece(Message& message, std::size_t length, const Start& start);
  void piece_done(Message& message, int code);
  void fail(Message& message, int code);
  [[nodiscard]] const Status& failure_of(int peer) const;
  template <class Concerned>
  void drop(const Concerned& concerned, const Status& why);

  Communicator communicator_;
  std::size_t piece_size_;
  Streams streams_;
  Requests<Message> requests_;     // of pieces
  bool clean_ = true;              // MPI has reported no error
  std::optional<Time> next_look_;  // once there have been requests, and while there are none
  Duration pause_{};               // between looks
  Status aborted_;
  std::map<int, Status> failures_;  // by peer
};

}  // namespace rueda::mpi
