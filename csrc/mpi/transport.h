// Moves bulk between ranks with MPI's point-to-point messages.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mpi/communicator.h"
#include "transport/transport.h"

namespace rueda::mpi {

// A message is received only when its length is known (MPI_Improbe): Open MPI writes beyond the
// buffer of a posted receive whose message turns out to be longer. It also leaves nothing in MPI's
// hands that abort() would have to take back, except messages that are arriving at that moment.
//
// A message travels as pieces: any number of full ones of `piece_size` bytes and a last, shorter
// one, which may be empty. Transfers of equal direction, peer and tag form a stream. MPI moves them
// in order but completes them in any, so the tickets of a stream are completed from its front.
//
// MPI cannot take back what it has been given. After fail() and abort() it may still read what was
// to be sent, and write messages that were arriving then and have not come whole within 100 ms; a
// warning tells of these.
class MpiTransport final : public Transport {
 public:
  // MPI counts bytes with an int.
  static constexpr std::size_t default_piece_size = std::size_t{1} << 30;

  explicit MpiTransport(Communicator communicator, std::size_t piece_size = default_piece_size);
  // Never waits: a communicator on which anything is left is abandoned to MPI.
  ~MpiTransport() override;

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return communicator_.rank(); }
  [[nodiscard]] int size() const override { return communicator_.size(); }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override;
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override;
  bool progress() override;
  [[nodiscard]] bool requires_polling() const override {
    return !requests_.empty() || !awaited_.empty();
  }
  bool arm() override { return !requires_polling(); }
  void disarm() override {}
  void fail(int peer, const Status& why) override;
  void abort(const Status& reason) override;

 private:
  struct Segment {
    std::byte* address;
    std::size_t length;
  };
  struct Stream;
  struct Operation {
    Stream* stream;
    Ticket ticket;
    std::vector<Segment> segments = {};
    std::size_t length = 0;  // of the caller's spans
    std::size_t moved = 0;   // bytes of the pieces that MPI has been given
    int in_flight = 0;       // pieces that MPI is busy with
    bool ended = false;      // there are no further pieces
    Status status = {};
    std::vector<std::unique_ptr<std::byte[]>> discarded = {};  // pieces that do not fit
  };
  // A piece that came before its receive.
  struct Arrival {
    MPI_Message message;
    std::size_t length;
  };
  struct Stream {
    std::uint64_t key;
    bool receiving;
    int peer;
    int tag;  // MPI's
    std::list<Operation> operations = {};
    std::list<Arrival> arrivals = {};
  };

  Stream& stream_of(bool receiving, int peer, int tag);
  template <class Spans>
  Operation& add_operation(Stream& stream, const Spans& spans);

  void send_pieces(Operation& operation);
  bool collect_arrivals();
  bool collect_arrivals_from(int peer);
  void assign_arrivals(Stream& stream);
  void receive_piece(Operation& operation, Arrival arrival);
  void fail_receives_from(int peer, int code);

  template <class Start>
  void start_piece(Operation& operation, std::size_t length, const Start& start);
  bool collect_requests();
  bool collect_one_by_one();
  void piece_done(Operation* operation, int code);
  void forget_request(std::size_t index);
  void end(Operation& operation, const Status& status);
  void fail(Operation& operation, int code);
  void complete_front(Stream& stream);
  [[nodiscard]] const Status& failure_of(int peer) const;
  template <class Concerned>
  void drop(const Concerned& concerned, const Status& why);
  template <class Concerned>
  void wait_for_receives_in_flight(const Concerned& concerned);

  [[nodiscard]] std::string describe(const Operation& operation) const;

  Communicator communicator_;
  std::size_t piece_size_;
  std::unordered_map<std::uint64_t, Stream> streams_;
  std::map<int, int> awaited_;  // peer → receives that have not seen their last piece
  // Parallel: what MPI is busy with, and for whom.
  std::vector<MPI_Request> requests_;
  std::vector<Operation*> owners_;
  // Where MPI_Testsome writes.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  bool clean_ = true;  // MPI has reported no error
  Status aborted_;
  std::map<int, Status> failures_;  // by peer
};

}  // namespace rueda::mpi
