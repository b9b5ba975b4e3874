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

constexpr auto finalized_text = "MPI was finalised while Rueda still used it";

bool is_done(MPI_Request& request) {
  int done = 0;
  return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
}

}  // namespace

MpiTransport::MpiTransport(Communicator communicator, std::size_t piece_size)
    : communicator_(std::move(communicator)), piece_size_(piece_size) {}

MpiTransport::~MpiTransport() {
  clean_ = clean_ && aborted_.ok() && streams_.empty() && requests_.empty();
  abort(Status(ErrorCode::shutdown, "the MPI transport is closed"));
  // Were it freed, MPI might reuse its number for a later communicator, where a late message of
  // this one would then be received.
  if (!clean_) communicator_.abandon();
}

MpiTransport::Stream& MpiTransport::stream_of(bool receiving, int peer, int tag) {
  const std::uint64_t key = (std::uint64_t{receiving} << 63) |
                            (static_cast<std::uint64_t>(peer) << 32) |
                            static_cast<std::uint32_t>(tag);
  return streams_.try_emplace(key, Stream{key, receiving, peer, tag}).first->second;
}

template <class Spans>
MpiTransport::Operation& MpiTransport::add_operation(Stream& stream, const Spans& spans) {
  Operation& operation =
      stream.operations.emplace_back(Operation{&stream, std::make_shared<Transfer>()});
  operation.ticket->peer = stream.peer;
  operation.segments.reserve(spans.size());
  for (const auto span : spans) {
    if (span.empty()) continue;
    // One type for both directions; a send only reads.
    operation.segments.push_back({const_cast<std::byte*>(span.data()), span.size()});
    operation.length += span.size();
  }
  return operation;
}

Ticket MpiTransport::send(int peer, Tag tag, std::span<const ConstBytes> spans) {
  if (!failure_of(peer).ok())
    return std::make_shared<Transfer>(Transfer{true, failure_of(peer), peer});
  Stream& stream = stream_of(false, peer, mpi_tag(tag));
  Operation& operation = add_operation(stream, spans);
  const Ticket ticket = operation.ticket;
  send_pieces(operation);
  complete_front(stream);
  return ticket;
}

Ticket MpiTransport::recv(int peer, Tag tag, std::span<const MutableBytes> spans) {
  if (!failure_of(peer).ok())
    return std::make_shared<Transfer>(Transfer{true, failure_of(peer), peer});
  Stream& stream = stream_of(true, peer, mpi_tag(tag));
  const Ticket ticket = add_operation(stream, spans).ticket;
  ++awaited_[peer];
  assign_arrivals(stream);
  return ticket;
}

void MpiTransport::send_pieces(Operation& operation) {
  const Stream& stream = *operation.stream;
  while (!operation.ended) {
    const std::size_t length = std::min(piece_size_, operation.length - operation.moved);
    start_piece(operation, length, [&](const Layout& layout, MPI_Request& request) {
      return MPI_Isend(layout.buffer(), layout.count(), layout.type(), stream.peer, stream.tag,
                       communicator_.get(), &request);
    });
    operation.ended = operation.ended || length < piece_size_;
  }
}

// Hands the next `length` bytes of the operation to MPI by `start(layout, request)`.
template <class Start>
void MpiTransport::start_piece(Operation& operation, std::size_t length, const Start& start) {
  if (is_finalized()) return end(operation, Status(ErrorCode::transport, finalized_text));
  const Layout layout(operation.segments, operation.moved, length);
  MPI_Request request = MPI_REQUEST_NULL;
  const int code = layout.status() == MPI_SUCCESS ? start(layout, request) : layout.status();
  operation.moved += length;
  if (code != MPI_SUCCESS) return fail(operation, code);
  requests_.push_back(request);
  owners_.push_back(&operation);
  ++operation.in_flight;
}

bool MpiTransport::progress() {
  if (!aborted_.ok()) return false;
  if (!requires_polling()) return false;
  if (is_finalized()) {
    abort(Status(ErrorCode::transport, finalized_text));
    return true;
  }
  const bool arrived = collect_arrivals();
  const bool done = collect_requests();
  return arrived || done;
}

bool MpiTransport::collect_arrivals() {
  bool moved = false;
  for (auto each = awaited_.begin(); each != awaited_.end();) {
    const int peer = (each++)->first;  // which may go
    while (awaited_.contains(peer) && collect_arrivals_from(peer)) moved = true;
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
  Stream& stream = stream_of(true, peer, status.MPI_TAG);
  stream.arrivals.push_back(arrival);
  assign_arrivals(stream);
  return true;
}

// Gives the pieces that have come to the receives that wait for them, both in order.
void MpiTransport::assign_arrivals(Stream& stream) {
  for (Operation& operation : stream.operations) {
    while (!operation.ended && !stream.arrivals.empty()) {
      const Arrival arrival = stream.arrivals.front();
      stream.arrivals.pop_front();
      receive_piece(operation, arrival);
    }
    if (stream.arrivals.empty()) break;
  }
  complete_front(stream);
}

void MpiTransport::receive_piece(Operation& operation, Arrival arrival) {
  const bool is_last = arrival.length < piece_size_;
  const bool fits = operation.moved + arrival.length <= operation.length;
  std::byte* elsewhere = nullptr;
  if (!fits) {
    elsewhere = operation.discarded.emplace_back(new std::byte[arrival.length]).get();
  }
  start_piece(operation, arrival.length, [&](const Layout& layout, MPI_Request& request) {
    if (elsewhere == nullptr) {
      return MPI_Imrecv(layout.buffer(), layout.count(), layout.type(), &arrival.message, &request);
    }
    return MPI_Imrecv(elsewhere, static_cast<int>(arrival.length), MPI_BYTE, &arrival.message,
                      &request);
  });
  if (operation.ended || !is_last) return;
  Status status;
  if (operation.moved != operation.length) {
    status = Status(ErrorCode::transport,
                    str(describe(operation), ": the message has ", operation.moved, " bytes"),
                    operation.stream->peer);
  }
  end(operation, status);
}

void MpiTransport::fail_receives_from(int peer, int code) {
  std::vector<Stream*> streams;
  for (auto& [key, stream] : streams_) {
    if (stream.receiving && stream.peer == peer) streams.push_back(&stream);
  }
  for (Stream* stream : streams) {
    for (Operation& operation : stream->operations) {
      if (!operation.ended) fail(operation, code);
    }
    complete_front(*stream);
  }
}

bool MpiTransport::collect_requests() {
  if (requests_.empty()) return false;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int done = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done,
                                indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return collect_one_by_one();
  if (done == MPI_UNDEFINED || done <= 0) return false;
  for (int i = 0; i < done; ++i) {
    const auto index = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    const int error = statuses_[static_cast<std::size_t>(i)].MPI_ERROR;
    piece_done(std::exchange(owners_[index], nullptr), code == MPI_SUCCESS ? code : error);
  }
  for (std::size_t index = requests_.size(); index-- > 0;) {
    if (owners_[index] == nullptr) forget_request(index);
  }
  return true;
}

// MPI_Testsome itself failed, without telling for which request.
bool MpiTransport::collect_one_by_one() {
  bool moved = false;
  for (std::size_t index = requests_.size(); index-- > 0;) {
    int done = 0;
    const int code = MPI_Test(&requests_[index], &done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && done == 0) continue;
    Operation* owner = owners_[index];
    forget_request(index);
    piece_done(owner, code);
    moved = true;
  }
  return moved;
}

void MpiTransport::forget_request(std::size_t index) {
  requests_[index] = requests_.back();
  owners_[index] = owners_.back();
  requests_.pop_back();
  owners_.pop_back();
}

void MpiTransport::piece_done(Operation* operation, int code) {
  --operation->in_flight;
  Stream& stream = *operation->stream;
  if (code != MPI_SUCCESS) fail(*operation, code);
  complete_front(stream);
}

std::string MpiTransport::describe(const Operation& operation) const {
  const Stream& stream = *operation.stream;
  return str(stream.receiving ? "receiving " : "sending ", operation.length,
             stream.receiving ? " bytes from rank " : " bytes to rank ", stream.peer,
             " (tag of MPI's ", stream.tag, ") over MPI");
}

// No further pieces. The first error counts.
void MpiTransport::end(Operation& operation, const Status& status) {
  const Stream& stream = *operation.stream;
  if (!operation.ended && stream.receiving) {
    const auto awaited = awaited_.find(stream.peer);
    if (--awaited->second == 0) awaited_.erase(awaited);
  }
  operation.ended = true;
  if (operation.status.ok()) operation.status = status;
}

void MpiTransport::fail(Operation& operation, int code) {
  clean_ = false;
  end(operation, failure(code, describe(operation), operation.stream->peer));
}

// Completes the tickets of the stream that are next in order. `stream` may be gone afterwards.
void MpiTransport::complete_front(Stream& stream) {
  while (!stream.operations.empty()) {
    Operation& front = stream.operations.front();
    if (!front.ended || front.in_flight > 0) return;
    front.ticket->status = std::move(front.status);
    front.ticket->done = true;
    stream.operations.pop_front();
  }
  if (!stream.arrivals.empty()) return;
  const std::uint64_t key = stream.key;
  streams_.erase(key);
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
  drop([](const Stream&) { return true; }, reason);
}

// Completes what is pending in the streams that are concerned, and forgets them.
template <class Concerned>
void MpiTransport::drop(const Concerned& concerned, const Status& why) {
  if (!is_finalized()) wait_for_receives_in_flight(concerned);
  for (std::size_t index = requests_.size(); index-- > 0;) {
    if (concerned(*owners_[index]->stream)) forget_request(index);
  }
  for (auto each = streams_.begin(); each != streams_.end();) {
    Stream& stream = (each++)->second;  // which may go
    if (!concerned(stream)) continue;
    for (Operation& operation : stream.operations) {
      operation.ticket->status = why;
      operation.ticket->done = true;
      // MPI may still write here.
      for (auto& piece : operation.discarded) static_cast<void>(piece.release());
    }
    awaited_.erase(stream.peer);
    streams_.erase(std::uint64_t{stream.key});
  }
}

// A message that is arriving cannot be stopped. It takes a moment, because its sender is mostly
// alive and moving too; where the sender is dead, ULFM ends it. Sends that nobody has begun to
// receive only read.
template <class Concerned>
void MpiTransport::wait_for_receives_in_flight(const Concerned& concerned) {
  std::vector<MPI_Request> receives;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Stream& stream = *owners_[i]->stream;
    if (stream.receiving && concerned(stream)) receives.push_back(requests_[i]);
  }
  const Time give_up = Clock::now() + 100ms;
  do {
    std::erase_if(receives, is_done);
  } while (!receives.empty() && Clock::now() < give_up);
  if (!receives.empty()) {
    log(LogLevel::warning, receives.size(),
        " messages were arriving over MPI when it was aborted; their buffers may still be written "
        "to");
  }
}

}  // namespace rueda::mpi
