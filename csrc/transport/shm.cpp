#include "transport/shm.h"

#include <cstring>
#include <deque>
#include <utility>

#include "transport/matching.h"
#include "transport/shm_ring.h"

namespace rueda {

namespace {

// Within a ring the other side is told after so much, so that both copy at once.
constexpr std::size_t publish_bytes = 64 << 10;

struct PendingSend {
  Tag tag = 0;
  SpanCursor<const std::byte> source;
  Ticket ticket;
  bool begun = false;
};

class ShmTransport final : public Transport {
 public:
  ShmTransport(std::shared_ptr<ShmSegment> segment, int rank, Doorbell bell,
               const std::vector<std::string>& bells)
      : segment_(std::move(segment)),
        rank_(rank),
        bell_(std::move(bell)),
        matching_(segment_->size()) {
    for (int peer = 0; peer < size(); ++peer) {
      peers_.push_back({RingProducer(segment_->control(rank, peer), segment_->bytes(rank, peer),
                                     segment_->ring_bytes()),
                        RingConsumer(segment_->control(peer, rank), segment_->bytes(peer, rank),
                                     segment_->ring_bytes()),
                        AbstractAddress(bells[static_cast<std::size_t>(peer)]),
                        {}});
    }
  }

  std::string_view name() const override { return "shm"; }
  int rank() const override { return rank_; }
  int size() const override { return segment_->size(); }
  int wait_fd() const override { return bell_.fd(); }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override;
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override {
    return matching_.recv(peer, tag, spans);
  }
  bool progress() override;
  bool arm() override;
  void disarm() override;
  void abort(const Status& reason) override;

 private:
  struct Peer {
    RingProducer out;
    RingConsumer in;
    AbstractAddress bell;
    std::deque<PendingSend> sends;
  };

  Peer& at(int peer) { return peers_[static_cast<std::size_t>(peer)]; }
  Ticket send_to_itself(Tag tag, std::span<const ConstBytes> spans);
  bool push(int peer);
  bool push(int peer, PendingSend& send);
  void publish(int peer);
  bool drain(int peer);
  void release(int peer);
  bool nothing_to_do();
  void stay_awake();

  const std::shared_ptr<ShmSegment> segment_;
  const int rank_;
  const Doorbell bell_;
  Matching matching_;
  std::vector<Peer> peers_;  // the one of this rank itself is not used
  Status aborted_;
};

Ticket ShmTransport::send(int peer, Tag tag, std::span<const ConstBytes> spans) {
  if (!aborted_.ok()) return finished_ticket(peer, aborted_);
  if (peer == rank_) return send_to_itself(tag, spans);
  auto ticket = std::make_shared<Transfer>(Transfer{false, {}, peer});
  auto& sends = at(peer).sends;
  sends.push_back({tag, SpanCursor<const std::byte>(spans), ticket});
  if (sends.size() == 1) push(peer);
  return ticket;
}

Ticket ShmTransport::send_to_itself(Tag tag, std::span<const ConstBytes> spans) {
  SpanCursor<const std::byte> source(spans);
  matching_.begin(rank_, tag, source.remaining());
  for (auto piece = source.front(); !piece.empty(); piece = source.front()) {
    matching_.append(rank_, piece);
    source.advance(piece.size());
  }
  return finished_ticket(rank_, {});
}

bool ShmTransport::progress() {
  if (!aborted_.ok()) return false;
  bool moved = false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    moved |= drain(peer);
    moved |= push(peer);
  }
  return moved;
}

bool ShmTransport::push(int peer) {
  auto& sends = at(peer).sends;
  bool moved = false;
  while (!sends.empty()) {
    PendingSend& front = sends.front();
    moved |= push(peer, front);
    if (!front.begun || front.source.remaining() > 0) break;
    finish(*front.ticket, {});
    sends.pop_front();
  }
  return moved;
}

// Puts as much of it into the ring as there is room for.
bool ShmTransport::push(int peer, PendingSend& send) {
  RingProducer& out = at(peer).out;
  auto room = out.room();
  if (room.empty()) return false;
  if (!send.begun) {
    const RingHeader header{send.source.remaining(), send.tag};
    std::memcpy(room.data(), &header, sizeof header);
    out.advance(sizeof header);
    send.begun = true;
    if (send.source.remaining() == 0) publish(peer);
    room = out.room();
  }
  while (send.source.remaining() > 0 && !room.empty()) {
    out.advance(copy_from(send.source, room.first(std::min(room.size(), publish_bytes))));
    if (send.source.remaining() == 0) out.pad();
    publish(peer);
    room = out.room();
  }
  return true;
}

void ShmTransport::publish(int peer) {
  at(peer).out.publish();
  auto& sleeps = segment_->flag(peer).sleeps;
  if (sleeps.load(std::memory_order_seq_cst) != 0 && sleeps.exchange(0) != 0) {
    bell_.ring(at(peer).bell);
  }
}

// Takes what has arrived by now, which is a ring's content at most, so that the other peers have
// their turn.
bool ShmTransport::drain(int peer) {
  RingConsumer& in = at(peer).in;
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
      if (piece.size() == publish_bytes) release(peer);
    }
    arrived = in.arrived();
  }
  release(peer);
  return true;
}

void ShmTransport::release(int peer) {
  if (at(peer).in.release()) bell_.ring(at(peer).bell);
}

bool ShmTransport::arm() {
  if (!aborted_.ok()) return true;  // there will never be anything to do
  if (nothing_to_do()) return true;
  stay_awake();
  return false;
}

// Says first that this rank sleeps, and looks then: whoever adds something in between rings.
bool ShmTransport::nothing_to_do() {
  segment_->flag(rank_).sleeps.store(1, std::memory_order_seq_cst);
  for (int index = 0; index < size(); ++index) {
    if (index == rank_) continue;
    Peer& peer = at(index);
    if (!peer.sends.empty() && !peer.out.sleep_unless_room()) return false;
    if (!peer.in.is_empty()) return false;
  }
  return true;
}

void ShmTransport::disarm() {
  stay_awake();
  bell_.silence();
}

void ShmTransport::stay_awake() {
  segment_->flag(rank_).sleeps.store(0, std::memory_order_relaxed);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_ && !at(peer).sends.empty()) at(peer).out.stay_awake();
  }
}

void ShmTransport::abort(const Status& reason) {
  if (!aborted_.ok()) return;
  aborted_ = reason;
  matching_.abort(reason);
  for (Peer& peer : peers_) {
    for (PendingSend& send : peer.sends) finish(*send.ticket, reason);
    peer.sends.clear();
  }
}

}  // namespace

std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<ShmSegment> segment, int rank,
                                              Doorbell bell,
                                              const std::vector<std::string>& bells) {
  return std::make_unique<ShmTransport>(std::move(segment), rank, std::move(bell), bells);
}

}  // namespace rueda
