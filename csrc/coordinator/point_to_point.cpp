#include "coordinator/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "coordinator/process_sets.h"
#include "core/earlier.h"
#include "core/strings.h"
#include "plan/negotiation_message.h"

namespace rueda {

namespace {

enum class Word : std::uint8_t {
  offer,       // the sender has a message
  request,     // the receiver requests it through the transport
  taken,       // the receiver has read it from the sender's memory
  refusal,     // the receiver cannot take it
  room,        // the receiver has taken this many bytes of small messages
  withdrawal,  // the sender leaves and no longer has it
};

// Bytes read at a time, so that other operations advance meanwhile.
constexpr std::size_t piece_bytes = 4 << 20;

Writer words(Word word) {
  Writer writer;
  writer.byte(static_cast<std::uint8_t>(word));
  return writer;
}

std::string describe(DataType dtype, std::int64_t count) {
  return str(count, " x ", name_of(dtype));
}

// The difference between a message sent and a receive that does not match it.
ErrorDetails difference(const auto& sent, const auto& wanted) {
  if (sent.dtype == wanted.dtype) {
    return {.field = "number of elements", .values = {str(sent.count), str(wanted.count)}};
  }
  return {.field = "dtype", .values = {str(name_of(sent.dtype)), str(name_of(wanted.dtype))}};
}

// Why `rank` does not receive a message.
Status has_left_status(int rank) {
  return {ErrorCode::shutdown, str("rank ", rank, " has left without receiving the message"), rank};
}

Status removed_status(int set_id, int rank) {
  return {ErrorCode::shutdown,
          str("process set ", set_id, " was removed before rank ", rank, " received the message"),
          rank};
}

Status withdrawn_status(int sender) {
  return {ErrorCode::shutdown,
          str("rank ", sender, " has shut down before its message was received"), sender};
}

}  // namespace

PointToPoint::PointToPoint(const HostGroup& host, Transport& transport,
                           const Departures& departures, Post post, WasRemoved was_removed,
                           MessageStalls* stalls)
    : host_(host),
      transport_(transport),
      departures_(departures),
      post_(std::move(post)),
      was_removed_(std::move(was_removed)),
      window_([this](int sender, std::size_t room) {
        Writer writer = words(Word::room);
        writer.unsigned_integer(room);
        post_(sender, writer.take());
      }),
      stalls_(stalls) {}

void PointToPoint::submit(MessageRequest request) {
  if (request.is_send) return offer(std::move(request));
  const auto found = std::find_if(offers_.begin(), offers_.end(), [&](const Offer& offer) {
    return offer.set_id == request.set_id && offer.tag == request.tag &&
           (request.peer < 0 || request.peer == offer.sender);
  });
  if (found == offers_.end()) {
    if (stalls_ != nullptr) stalls_->begin(request);
    receives_.push_back(std::move(request));
    return;
  }
  Offer offer = std::move(*found);
  offers_.erase(found);
  match(std::move(request), std::move(offer));
}

void PointToPoint::offer(MessageRequest request) {
  const std::uint64_t number = next_number_++;
  const std::size_t bytes = request.bytes();
  const bool is_inline = bytes <= inline_bytes && window_.reserve(request.peer, bytes);
  Writer writer = words(Word::offer);
  writer.unsigned_integer(number);
  writer.unsigned_integer(static_cast<std::uint64_t>(request.set_id));
  writer.integer(request.tag);
  writer.byte(static_cast<std::uint8_t>(request.dtype));
  writer.unsigned_integer(static_cast<std::uint64_t>(request.count));
  writer.unsigned_integer(reinterpret_cast<std::uintptr_t>(request.data));
  writer.byte(is_inline ? 1 : 0);
  std::vector<std::byte> message = writer.take();
  if (is_inline) message.insert(message.end(), request.data, request.data + bytes);
  const int peer = request.peer;
  if (is_inline) {
    post_(peer, message);
    return request.handle->complete({});
  }
  if (stalls_ != nullptr) stalls_->begin(request);
  // Registered before it is offered: a message to this very rank may be answered within post_().
  offered_.emplace(number, std::move(request));
  post_(peer, message);
}

void PointToPoint::receive(int peer, std::span<const std::byte> message) {
  Reader reader(message);
  const auto word = static_cast<Word>(reader.byte());
  if (word == Word::offer) return take_offer(peer, reader);
  const std::uint64_t number = reader.unsigned_integer();
  if (word == Word::room && reader.ok()) return window_.returned(peer, number);
  if (word == Word::withdrawal && reader.ok()) return withdraw(peer, number);
  const auto offered = offered_.find(number);
  if (!reader.ok() || offered == offered_.end() || offered->second.peer != peer) return;
  if (word == Word::request) {
    const std::uint64_t sequence = reader.unsigned_integer();
    if (reader.ok()) send_now(number, message_tag(sequence));
  } else if (word == Word::taken) {
    finish_send(number, {});
  } else if (word == Word::refusal) {
    finish_send(number, read_status(reader));
  }
}

void PointToPoint::take_offer(int peer, Reader& reader) {
  Offer offer;
  offer.sender = peer;
  offer.number = reader.unsigned_integer();
  // Rueda's own have negative numbers.
  const auto set = static_cast<std::int64_t>(reader.unsigned_integer());
  offer.tag = reader.integer();
  offer.dtype = static_cast<DataType>(reader.byte());
  offer.count = static_cast<std::int64_t>(reader.unsigned_integer());
  offer.address = reader.unsigned_integer();
  offer.is_inline = reader.byte() != 0;
  const bool is_set = std::in_range<int>(set);
  if (!reader.ok() || !is_set || static_cast<std::size_t>(offer.dtype) >= data_types.size()) return;
  offer.set_id = static_cast<int>(set);
  if (offer.is_inline) offer.content.assign(reader.rest().begin(), reader.rest().end());
  const auto found =
      std::find_if(receives_.begin(), receives_.end(), [&](const MessageRequest& request) {
        return offer.set_id == request.set_id && offer.tag == request.tag &&
               (request.peer < 0 || request.peer == peer);
      });
  if (found != receives_.end()) {
    MessageRequest request = std::move(*found);
    receives_.erase(found);
    return match(std::move(request), std::move(offer));
  }
  if (left_.contains(offer.set_id)) return refuse(offer, has_left_status(transport_.rank()));
  if (was_removed_(offer.set_id))
    return refuse(offer, removed_status(offer.set_id, transport_.rank()));
  offers_.push_back(std::move(offer));
}

void PointToPoint::match(MessageRequest request, Offer offer) {
  if (request.dtype != offer.dtype || request.count != offer.count) {
    const Status why(
        ErrorCode::mismatch,
        str("the message from rank ", offer.sender, " to rank ", transport_.rank(), " with tag ",
            offer.tag, ": rank ", offer.sender, " sends ", describe(offer.dtype, offer.count),
            ", rank ", transport_.rank(), " receives ", describe(request.dtype, request.count)),
        -1, difference(offer, request));
    refuse(offer, why);
    return request.handle->complete(why);
  }
  if (offer.is_inline) window_.taken(offer.sender, offer.content.size());
  if (offer.is_inline && offer.content.size() != request.bytes()) {
    return request.handle->complete(
        Status(ErrorCode::internal, str("a malformed message from rank ", offer.sender)));
  }
  Arrival arrival{std::move(request), std::move(offer)};
  const auto host_rank = host_.rank_of(arrival.offer.sender);
  if (host_rank && host_.memory()->has_direct_access()) {
    arrival.host_rank = *host_rank;
  } else if (!arrival.offer.is_inline) {
    const std::uint64_t sequence = next_sequence_++;
    const MutableBytes target(arrival.request.data, arrival.request.bytes());
    arrival.ticket = transport_.recv(arrival.offer.sender, message_tag(sequence), {&target, 1});
    Writer writer = words(Word::request);
    writer.unsigned_integer(arrival.offer.number);
    writer.unsigned_integer(sequence);
    post_(arrival.offer.sender, writer.take());
  }
  arriving_.push_back(std::move(arrival));
}

void PointToPoint::send_now(std::uint64_t number, Tag tag) {
  auto offered = offered_.extract(number);
  Departure departure{std::move(offered.mapped())};
  const ConstBytes source(departure.request.data, departure.request.bytes());
  departure.ticket = transport_.send(departure.request.peer, tag, {&source, 1});
  departing_.push_back(std::move(departure));
}

void PointToPoint::finish_send(std::uint64_t number, const Status& status) {
  const auto offered = offered_.extract(number);
  offered.mapped().handle->complete(status);
}

// A rank that requests it later finds that the sender has left. Nothing more arrives through the
// transport: the sender has answered earlier requests, or it would not leave. So a receive that the
// transport keeps, with the application's memory, never completes: its tag is not used again.
void PointToPoint::withdraw(int sender, std::uint64_t number) {
  const auto is_it = [&](const Offer& offer) {
    return offer.sender == sender && offer.number == number;
  };
  offers_.remove_if(is_it);
  arriving_.remove_if([&](const Arrival& arrival) {
    if (!is_it(arrival.offer)) return false;
    arrival.request.handle->complete(withdrawn_status(sender));
    return true;
  });
}

void PointToPoint::refuse(const Offer& offer, const Status& why) {
  // The send of an inline message has completed already.
  if (offer.is_inline) return window_.taken(offer.sender, offer.content.size());
  Writer writer = words(Word::refusal);
  writer.unsigned_integer(offer.number);
  write(writer, why);
  post_(offer.sender, writer.take());
}

bool PointToPoint::step(Time now) {
  bool moved = false;
  for (auto arrival = arriving_.begin(); arrival != arriving_.end();) {
    const bool done = advance(*arrival);
    moved = moved || done || !arrival->ticket;
    arrival = done ? arriving_.erase(arrival) : std::next(arrival);
  }
  for (auto departure = departing_.begin(); departure != departing_.end();) {
    const bool done = departure->ticket->done;
    if (done) departure->request.handle->complete(departure->ticket->status);
    moved = moved || done;
    departure = done ? departing_.erase(departure) : std::next(departure);
  }
  moved = fail_sends() || moved;
  moved = fail_receives(now) || moved;
  if (stalls_ != nullptr && stalls_->is_due(now)) {
    std::vector<WaitingMessage*> waiting;
    for (MessageRequest& receive : receives_) waiting.push_back(&receive);
    for (auto& [number, send] : offered_) waiting.push_back(&send);
    stalls_->look(now, waiting);
  }
  return moved;
}

// Returns whether it is done.
bool PointToPoint::advance(Arrival& arrival) {
  const MessageRequest& request = arrival.request;
  const Offer& offer = arrival.offer;
  Status status;
  if (offer.is_inline) {
    if (!offer.content.empty()) {
      std::memcpy(request.data, offer.content.data(), offer.content.size());
    }
  } else if (arrival.ticket) {
    if (!arrival.ticket->done) return false;
    status = arrival.ticket->status;
  } else {
    const std::size_t piece = std::min(piece_bytes, request.bytes() - arrival.done);
    std::byte* const target = request.data + arrival.done;
    const std::uint64_t source = offer.address + arrival.done;
    if (offer.sender == transport_.rank()) {
      if (piece > 0) std::memcpy(target, reinterpret_cast<const void*>(source), piece);
    } else {
      status = host_.memory()->read_from(arrival.host_rank, target, source, piece);
      // Once the sender's world has ended, its application has the memory back and may overwrite
      // it.
      const std::uint32_t end = host_.memory()->header(arrival.host_rank).world_end.load();
      if (end == world_is_left) {
        status = withdrawn_status(offer.sender);
      } else if (status.ok() && end == world_is_broken) {
        status = Status(ErrorCode::peer_lost,
                        str("rank ", offer.sender, " has ended before its message was received"),
                        offer.sender);
      }
    }
    arrival.done += piece;
    if (status.ok() && arrival.done < request.bytes()) return false;
    if (status.ok()) {
      Writer writer = words(Word::taken);
      writer.unsigned_integer(offer.number);
      post_(offer.sender, writer.take());
    } else {
      refuse(offer, status);
    }
  }
  OperationOutput output;
  output.source = offer.sender;
  request.handle->complete(status, std::move(output));
  return true;
}

bool PointToPoint::uses_transport() const {
  return !departing_.empty() ||
         std::any_of(arriving_.begin(), arriving_.end(),
                     [](const Arrival& arrival) { return arrival.ticket != nullptr; });
}

// A receiver that has left takes nothing any more; one that stays accepts or refuses every offer.
bool PointToPoint::fail_sends() {
  bool moved = false;
  for (auto send = offered_.begin(); send != offered_.end();) {
    if (!departures_.has_left(send->second.peer)) {
      ++send;
      continue;
    }
    send->second.handle->complete(
        Status(ErrorCode::shutdown,
               str("rank ", send->second.peer,
                   " has shut down without receiving the message with tag ", send->second.tag),
               send->second.peer));
    send = offered_.erase(send);
    moved = true;
  }
  return moved;
}

bool PointToPoint::fail_receives(Time now) {
  bool moved = false;
  if (closed_.empty()) return moved;
  for (auto receive = receives_.begin(); receive != receives_.end();) {
    const auto closing = closed_.find(receive->set_id);
    const bool over =
        closing != closed_.end() && (now >= closing->second.receives_end ||
                                     (receive->peer >= 0 && departures_.has_left(receive->peer)));
    if (!over) {
      ++receive;
      continue;
    }
    receive->handle->complete(closing->second.reason);
    receive = receives_.erase(receive);
    moved = true;
  }
  if (moved) drop_forgotten();
  return moved;
}

std::optional<Time> PointToPoint::next_deadline() const {
  std::optional<Time> earliest;
  if (closed_.empty()) return earliest;
  for (const MessageRequest& receive : receives_) {
    const auto closing = closed_.find(receive.set_id);
    if (closing == closed_.end()) continue;
    earliest = earlier(earliest, closing->second.receives_end);
  }
  return earliest;
}

void PointToPoint::close(int set_id, const Status& reason, Time now, Duration timeout) {
  closed_.emplace(set_id, Closing{reason, now + timeout});
}

void PointToPoint::forget(int set_id) {
  left_.erase(set_id);
  const auto closing = closed_.find(set_id);
  if (closing == closed_.end()) return;
  closing->second.forgotten = true;
  drop_forgotten();
}

void PointToPoint::drop_forgotten() {
  std::erase_if(closed_, [this](const auto& closing) {
    const auto is_of_it = [&](const MessageRequest& receive) {
      return receive.set_id == closing.first;
    };
    return closing.second.forgotten && std::none_of(receives_.begin(), receives_.end(), is_of_it);
  });
}

void PointToPoint::leave(int set_id) {
  left_.insert(set_id);
  refuse_offers(set_id, has_left_status(transport_.rank()));
}

void PointToPoint::remove(int set_id) {
  refuse_offers(set_id, removed_status(set_id, transport_.rank()));
}

void PointToPoint::refuse_offers(int set_id, const Status& why) {
  for (auto offer = offers_.begin(); offer != offers_.end();) {
    const bool refused = offer->set_id == set_id;
    if (refused) refuse(*offer, why);
    offer = refused ? offers_.erase(offer) : std::next(offer);
  }
}

void PointToPoint::leave_all() {
  for (const Offer& offer : offers_) refuse(offer, has_left_status(transport_.rank()));
  offers_.clear();
}

void PointToPoint::withdraw_all() {
  for (const auto& [number, send] : offered_) {
    if (send.peer == transport_.rank()) continue;
    Writer writer = words(Word::withdrawal);
    writer.unsigned_integer(number);
    post_(send.peer, writer.take());
  }
}

template <class IsConcerned>
void PointToPoint::fail_those(const Status& reason, const IsConcerned& is_concerned) {
  const auto failed = [&](const MessageRequest& request, int peer) {
    const bool fails = is_concerned(peer);
    if (fails) request.handle->complete(reason);
    return fails;
  };
  receives_.remove_if([&](const MessageRequest& receive) { return failed(receive, receive.peer); });
  std::erase_if(offered_, [&](const auto& send) { return failed(send.second, send.second.peer); });
  arriving_.remove_if(
      [&](const Arrival& arrival) { return failed(arrival.request, arrival.offer.sender); });
  departing_.remove_if([&](const Departure& departure) {
    return failed(departure.request, departure.request.peer);
  });
  offers_.remove_if([&](const Offer& offer) { return is_concerned(offer.sender); });
}

void PointToPoint::lose(int rank, const Status& reason) {
  fail_those(reason, [rank](int peer) { return peer == rank; });
}

void PointToPoint::fail_all(const Status& reason) {
  fail_those(reason, [](int) { return true; });
}

}  // namespace rueda
