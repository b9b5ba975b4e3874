#include "transport/inproc.h"

#include <numeric>
#include <utility>

#include "transport/inproc_state.h"
#include "transport/ring_transport.h"

namespace rueda {

namespace {

constexpr std::size_t ring_bytes = 64 << 10;

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class InprocTransport final : public RingTransport {
 public:
  InprocTransport(std::shared_ptr<InprocState> state, int rank)
      : RingTransport(rank, state->size(), all_ranks(state->size()), state->inbox(rank)),
        state_(std::move(state)) {}

  std::string_view name() const override { return "inproc"; }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override {
    if (!state_->reaches(rank(), peer)) return finished_ticket(peer, {});
    return RingTransport::send(peer, tag, spans);
  }
  bool progress() override { return !state_->rank(rank()).dead && RingTransport::progress(); }

  int wait_fd() const override { return state_->rank(rank()).bell.fd(); }
  void disarm() override {
    RingTransport::disarm();
    state_->rank(rank()).bell.silence();
  }

 private:
  Expected<Outlet> open_outlet(int place) override {
    auto& ring = state_->ring(rank(), place);
    ring = std::make_unique_for_overwrite<std::byte[]>(ring_bytes);
    return Outlet{state_->inbox(place), {ring.get(), ring_bytes}};
  }
  std::span<const std::byte> find_inlet(int place) override {
    return {state_->ring(place, rank()).get(), ring_bytes};
  }
  void wake(int place) override { state_->rank(place).bell.ring(); }

  const std::shared_ptr<InprocState> state_;
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocState> state, int rank) {
  return std::make_unique<InprocTransport>(std::move(state), rank);
}

InprocState::InprocState(int size) : ranks(static_cast<std::size_t>(size)) {
  for (InprocRank& rank : ranks) {
    rank.inbox = std::make_unique<CacheLine[]>(Inbox::bytes(size) / sizeof(CacheLine));
    rank.rings.resize(ranks.size());
  }
}

InprocHub::InprocHub(int size) : state_(std::make_shared<InprocState>(size)) {}

int InprocHub::size() const {
  return state_->size();
}

std::unique_ptr<Transport> InprocHub::make_transport(int rank) {
  return make_inproc_transport(state_, rank);
}

std::unique_ptr<ControlLane> InprocHub::make_control_lane(int rank) {
  return make_inproc_control(state_, rank);
}

std::unique_ptr<Bootstrap> InprocHub::make_bootstrap(int rank) {
  return make_inproc_bootstrap(state_, rank);
}

void InprocHub::kill(int rank, const std::string& cause) {
  state_->kill(rank, cause);
}

}  // namespace rueda
