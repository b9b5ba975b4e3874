#include "transport/inproc.h"

#include <utility>

#include "transport/inproc_state.h"
#include "transport/matching.h"

namespace rueda {

namespace {

class InprocTransport final : public Transport {
 public:
  InprocTransport(std::shared_ptr<InprocState> state, int rank)
      : state_(std::move(state)), rank_(rank), matching_(state_->size()) {}

  std::string_view name() const override { return "inproc"; }
  int rank() const override { return rank_; }
  int size() const override { return state_->size(); }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override {
    if (!aborted_.ok()) return finished_ticket(peer, aborted_);
    SpanCursor<const std::byte> source(spans);
    InprocMessage message{rank_, tag, std::vector<std::byte>(source.remaining())};
    copy_from(source, message.bytes);
    if (state_->reaches(rank_, peer)) state_->rank(peer).bulk.push(std::move(message));
    return finished_ticket(peer, {});
  }

  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override {
    return matching_.recv(peer, tag, spans);
  }

  bool progress() override {
    const auto arrived = mailbox().take_all();
    for (const InprocMessage& message : arrived) {
      matching_.begin(message.source, message.tag, message.bytes.size());
      if (!message.bytes.empty()) matching_.append(message.source, message.bytes);
    }
    return !arrived.empty();
  }

  int wait_fd() const override { return state_->rank(rank_).bulk.fd(); }
  bool arm() override { return mailbox().arm(); }
  void disarm() override { mailbox().disarm(); }

  void abort(const Status& reason) override {
    if (aborted_.ok()) aborted_ = reason;
    matching_.abort(reason);
  }

 private:
  Mailbox<InprocMessage>& mailbox() { return state_->rank(rank_).bulk; }

  const std::shared_ptr<InprocState> state_;
  const int rank_;
  Matching matching_;
  Status aborted_;
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocState> state, int rank) {
  return std::make_unique<InprocTransport>(std::move(state), rank);
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
