#include "transport/ring_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rueda {

namespace {

// Within a ring, tells the other side after this many bytes, so that both copy at the same time.
constexpr std::size_t publish_bytes = 64 << 10;

}  // namespace

RingTransport::RingTransport(int rank, int size, const std::vector<int>& ranks, const Inbox& own)
    : rank_(rank), own_(own), matching_(size), place_of_(static_cast<std::size_t>(size), -1) {
  for (const int peer : ranks) {
    const auto place = static_cast<int>(peers_.size());
    place_of_[static_cast<std::size_t>(peer)] = place;
    peers_.push_back({peer, &own.from(place)});
  }
}

Ticket RingTransport::send(int peer, Tag tag, std::span<const ConstBytes> spans) {
  if (const Status& failure = matching_.failure(peer); !failure.ok()) {
    return finished_ticket(peer, failure);
  }
  if (peer == rank_) return send_to_itself(tag, spans);
  const int place = place_of(peer);
  if (!at(place).out) {
    if (const Status opened = open(place); !opened.ok()) return finished_ticket(peer, opened);
  }
  auto ticket = std::make_shared<Transfer>(Transfer{false, {}, peer});
  auto& sends = at(place).sends;
  sends.push_back({tag, SpanCursor<const std::byte>(spans), ticket});
  if (sends.size() == 1) push(place);
  return ticket;
}

Status RingTransport::open(int place) {
  const auto outlet = open_outlet(place);
  if (!outlet) return outlet.status();
  at(place).inbox = outlet->inbox;
  at(place).out.emplace(outlet->inbox.from(place_of(rank_)), outlet->ring);
  return {};
}

Ticket RingTransport::send_to_itself(Tag tag, std::span<const ConstBytes> spans) {
  SpanCursor<const std::byte> source(spans);
  matching_.begin(rank_, tag, source.remaining());
  for (auto piece = source.front(); !piece.empty(); piece = source.front()) {
    matching_.append(rank_, piece);
    source.advance(piece.size());
  }
  return finished_ticket(rank_, {});
}

bool RingTransport::progress() {
  bool moved = false;
  for (int place = 0; place < static_cast<int>(peers_.size()); ++place) {
    if (!is_served(at(place))) continue;
    moved |= drain(place);
    moved |= push(place);
  }
  return moved;
}

bool RingTransport::push(int place) {
  auto& sends = at(place).sends;
  bool moved = false;
  while (!sends.empty()) {
    PendingSend& front = sends.front();
    moved |= push(place, front);
    if (!front.begun || front.source.remaining() > 0) break;
    finish(*front.ticket, {});
    sends.pop_front();
  }
  return moved;
}

// Puts as much of the message into the ring as there is room for.
bool RingTransport::push(int place, PendingSend& send) {
  RingProducer& out = *at(place).out;
  auto room = out.room();
  if (room.empty()) return false;
  if (!send.begun) {
    const RingHeader header{send.source.remaining(), send.tag};
    std::memcpy(room.data(), &header, sizeof header);
    out.advance(sizeof header);
    send.begun = true;
    if (send.source.remaining() == 0) publish(place);
    room = out.room();
  }
  while (send.source.remaining() > 0 && !room.empty()) {
    out.advance(copy_from(send.source, room.first(std::min(room.size(), publish_bytes))));
    if (send.source.remaining() == 0) out.pad();
    publish(place);
    room = out.room();
  }
  return true;
}

void RingTransport::publish(int place) {
  at(place).out->publish();
  auto& sleeps = at(place).inbox.sleeps();
  if (sleeps.load(std::memory_order_seq_cst) != 0 && sleeps.exchange(0) != 0) wake(place);
}

// Takes what has arrived by now, at most the content of the ring, so that the other peers have
// their turn.
bool RingTransport::drain(int place) {
  const int peer = at(place).rank;
  if (!at(place).in) {
    if (at(place).arriving->head.load(std::memory_order_acquire) == 0) return false;
    at(place).in.emplace(*at(place).arriving, find_inlet(place));
  }
  RingConsumer& in = *at(place).in;
  in.look();
  auto arrived = in.arrived();
  if (arrived.empty()) return false;
  while (!arrived.empty()) {
    std::size_t unread = matching_.unread(peer);
    if (unread == 0) {
      RingHeader header;
      std::memcpy(&header, arrived.data(), sizeof header);
      in.advance(sizeof header);
      matching_.begin(peer, header.tag, header.length);
    } else {
      const auto piece = arrived.first(std::min({arrived.size(), unread, publish_bytes}));
      matching_.append(peer, piece);
      in.advance(piece.size());
      if (piece.size() == unread) in.skip_padding();
      if (piece.size() == publish_bytes) release(place);
    }
    arrived = in.arrived();
  }
  release(place);
  return true;
}

void RingTransport::release(int place) {
  if (at(place).in->release()) wake(place);
}

// First announces that this rank sleeps, then checks, so that a rank that adds something in between
// wakes it.
bool RingTransport::arm() {
  own_.sleeps().store(1, std::memory_order_seq_cst);
  if (std::none_of(peers_.begin(), peers_.end(), [this](Peer& peer) { return has_work(peer); })) {
    return true;
  }
  stay_awake();
  return false;
}

bool RingTransport::has_work(Peer& peer) const {
  if (!is_served(peer)) return false;
  if (!peer.sends.empty() && !peer.out->sleep_unless_room()) return true;
  return peer.in ? !peer.in->is_empty() : peer.arriving->head.load(std::memory_order_seq_cst) != 0;
}

void RingTransport::disarm() {
  stay_awake();
}

void RingTransport::stay_awake() {
  own_.sleeps().store(0, std::memory_order_relaxed);
  for (Peer& peer : peers_) {
    if (!peer.sends.empty()) peer.out->stay_awake();
  }
}

void RingTransport::fail(int peer, const Status& why) {
  matching_.fail(peer, why);
  for (PendingSend& send : at(place_of(peer)).sends) finish(*send.ticket, why);
  at(place_of(peer)).sends.clear();
}

void RingTransport::abort(const Status& reason) {
  for (const Peer& peer : peers_) fail(peer.rank, reason);
}

}  // namespace rueda
