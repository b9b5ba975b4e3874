#include "mpi/transport.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/strings.h"
#include "mpi/error.h"
#include "mpi/layout.h"
#include "mpi/tags.h"

namespace rueda::mpi {

using namespace std::chrono_literals;

namespace {

// Between looks at MPI when nothing of this rank is in flight.
constexpr Duration first_pause = 100ms;
constexpr Duration max_pause = 1s;
constexpr int calls_per_look = 16;

constexpr auto finalized_text = "MPI was finalised while Rueda still used it";

template <class Message>
std::string describe(const Message& message) {
  const auto& stream = *message.stream;
  return str(stream.receiving ? "receiving " : "sending ", message.length,
             stream.receiving ? " bytes from rank " : " bytes to rank ", stream.peer, " (MPI tag ",
             stream.tag, ") over MPI");
}

}  // namespace

MpiTransport::MpiTransport(Communicator communicator, std::size_t piece_size)
    : communicator_(std::move(communicator)), piece_size_(piece_size) {}

MpiTransport::~MpiTransport() {
  clean_ = clean_ && aborted_.ok() && streams_.empty() && requests_.empty();
  abort(Status(ErrorCode::shutdown, "the MPI transport is closed"));
  // If it were freed, MPI could reuse its number for a later communicator, which would then receive
  // late messages of this one.
  if (!clean_) communicator_.abandon();
}

Ticket MpiTransport::send(int peer, Tag tag, std::span<const ConstBytes> spans) {
  if (!failure_of(peer).ok())
    return std::make_shared<Transfer>(Transfer{true, failure_of(peer), peer});
  Stream& stream = streams_.find(false, peer, mpi_tag(tag));
  Message& message = streams_.add(stream, spans);
  const Ticket ticket = message.ticket;
  send_pieces(message);
  streams_.complete_front(stream);
  return ticket;
}

Ticket MpiTransport::recv(int peer, Tag tag, std::span<const MutableBytes> spans) {
  if (!failure_of(peer).ok())
    return std::make_shared<Transfer>(Transfer{true, failure_of(peer), peer});
  Stream& stream = streams_.find(true, peer, mpi_tag(tag));
  const Ticket ticket = streams_.add(stream, spans).ticket;
  assign_arrivals(stream);
  return ticket;
}

void MpiTransport::send_pieces(Message& message) {
  const Stream& stream = *message.stream;
  while (!message.ended) {
    const std::size_t length = std::min(piece_size_, message.length - message.moved);
    start_piece(message, length, [&](const Layout& layout, MPI_Request& request) {
      return MPI_Isend(layout.buffer(), layout.count(), layout.type(), stream.peer, stream.tag,
                       communicator_.get(), &request);
    });
    message.ended = message.ended || length < piece_size_;
  }
}

// Passes the next `length` bytes of the message to MPI by calling `start(layout, request)`.
template <class Start>
void MpiTransport::start_piece(Message& message, std::size_t length, const Start& start) {
  if (is_finalized()) return streams_.end(message, Status(ErrorCode::transport, finalized_text));
  const Layout layout(message.segments, message.moved, length);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = layout.status() == MPI_SUCCESS ? start(layout, request) : layout.status();
  message.moved += length;
  if (code != MPI_SUCCESS) return fail(message, code);
  requests_.add(request, message);
  ++message.in_flight;
}

bool MpiTransport::progress() {
  if (!aborted_.ok()) return false;
  if (!requires_polling()) {
    look_at_mpi();
    return false;
  }
  if (is_finalized()) {
    abort(Status(ErrorCode::transport, finalized_text));
    return true;
  }
  const bool moved = move_requests();
  pause_ = first_pause;
  next_look_ = requires_polling() ? std::nullopt : std::optional(Clock::now() + pause_);
  return moved;
}

// MPI reports messages as sent that it has only queued, and acknowledges received ones later; both
// move only while MPI is called (MPI 4.1, section 2.9, "weak progress"). The peer cannot say that
// it still waits for them, so there is no end to this.
void MpiTransport::look_at_mpi() {
  if (!next_look_ || Clock::now() < *next_look_) return;
  if (is_finalized()) return next_look_.reset();
  int found = 0;
  // Nothing comes from this rank: if anything were found, Open MPI would return at once.
  for (int calls = 0; calls < calls_per_look; ++calls) {
    MPI_Iprobe(rank(), MPI_ANY_TAG, communicator_.get(), &found, MPI_STATUS_IGNORE);
  }
  pause_ = std::min(2 * pause_, max_pause);
  next_look_ = Clock::now() + pause_;
}

bool MpiTransport::move_requests() {
  const bool arrived = collect_arrivals();
  const bool done =
      requests_.collect([this](Message& message, int code) { piece_done(message, code); });
  return arrived || done;
}

bool MpiTransport::collect_arrivals() {
  bool moved = false;
  const std::map<int, int>& awaited = streams_.awaited();
  for (auto each = awaited.begin(); each != awaited.end();) {
    const int peer = (each++)->first;  // may be removed
    while (awaited.contains(peer) && collect_arrivals_from(peer)) moved = true;
  }
  return moved;
}

bool MpiTransport::collect_arrivals_from(int peer) {
  int found = 0;
  Arrival arrival{MPI_MESSAGE_NULL, 0};
  MPI_Status status{};
  const int code =
      MPI_Improbe(peer, MPI_ANY_TAG, communicator_.get(), &found, &arrival.message, &status);
  if (code != MPI_SUCCESS) {
    fail_receives_from(peer, code);
    return true;
  }
  if (found == 0) return false;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  arrival.length = static_cast<std::size_t>(count);
  Stream& stream = streams_.find(true, peer, status.MPI_TAG);
  stream.arrivals.push_back(arrival);
  assign_arrivals(stream);
  return true;
}

// Passes arrived pieces to the receives that wait for them, in order.
void MpiTransport::assign_arrivals(Stream& stream) {
  for (Message& message : stream.messages) {
    while (!message.ended && !stream.arrivals.empty()) {
      const Arrival arrival = stream.arrivals.front();
      stream.arrivals.pop_front();
      receive_piece(message, arrival);
    }
    if (stream.arrivals.empty()) break;
  }
  streams_.complete_front(stream);
}

void MpiTransport::receive_piece(Message& message, Arrival arrival) {
  const bool is_last = arrival.length < piece_size_;
  const bool fits = message.moved + arrival.length <= message.length;
  std::byte* elsewhere = nullptr;
  if (!fits) {
    elsewhere = message.discarded.emplace_back(new std::byte[arrival.length]).get();
  }
  start_piece(message, arrival.length, [&](const Layout& layout, MPI_Request& request) {
    if (elsewhere == nullptr) {
      return MPI_Imrecv(layout.buffer(), layout.count(), layout.type(), &arrival.message, &request);
    }
    return MPI_Imrecv(elsewhere, static_cast<int>(arrival.length), MPI_BYTE, &arrival.message,
                      &request);
  });
  if (message.ended || !is_last) return;
  Status status;
  if (message.moved != message.length) {
    status = Status(ErrorCode::transport,
                    str(describe(message), ": the message has ", message.moved, " bytes"),
                    message.stream->peer);
  }
  streams_.end(message, status);
}

void MpiTransport::fail_receives_from(int peer, int code) {
  for (Stream* const stream : streams_.all_of(true, peer)) {
    for (Message& message : stream->messages) {
      if (!message.ended) fail(message, code);
    }
    streams_.complete_front(*stream);
  }
}

void MpiTransport::piece_done(Message& message, int code) {
  --message.in_flight;
  if (code != MPI_SUCCESS) fail(message, code);
  streams_.complete_front(*message.stream);
}

void MpiTransport::fail(Message& message, int code) {
  clean_ = false;
  streams_.end(message, failure(code, describe(message), message.stream->peer));
}

const Status& MpiTransport::failure_of(int peer) const {
  const auto failed = failures_.find(peer);
  return failed == failures_.end() ? aborted_ : failed->second;
}

void MpiTransport::fail(int peer, const Status& why) {
  if (!failure_of(peer).ok()) return;
  failures_.emplace(peer, why);
  clean_ = false;
  drop([peer](const Stream& stream) { return stream.peer == peer; }, why);
}

void MpiTransport::abort(const Status& reason) {
  if (!aborted_.ok()) return;
  aborted_ = reason;
  next_look_.reset();
  drop([](const Stream&) { return true; }, reason);
}

// Completes what is pending in the concerned streams. An arriving message cannot be stopped. It
// takes only a moment, because its sender is usually alive and making progress; if the sender is
// dead, ULFM ends it. Sends that nobody has begun to receive only read.
template <class Concerned>
void MpiTransport::drop(const Concerned& concerned, const Status& why) {
  const auto is_concerned = [&](const Message& message) { return concerned(*message.stream); };
  const auto is_arriving = [&](const Message& message) {
    return message.stream->receiving && is_concerned(message);
  };
  const std::size_t left =
      is_finalized() ? 0 : requests_.wait_for(is_arriving, Clock::now() + 100ms);
  if (left > 0) {
    log(LogLevel::warning, left,
        " messages were arriving over MPI when it was aborted; their buffers may still be written "
        "to");
  }
  requests_.forget(is_concerned);
  streams_.drop(concerned, why);
}

}  // namespace rueda::mpi
