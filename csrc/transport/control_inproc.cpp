// The control lane of ranks that are threads.
#include <utility>

#include "transport/inproc_state.h"

namespace rueda {

namespace {

class InprocControl final : public ControlLane {
 public:
  InprocControl(std::shared_ptr<InprocState> state, int rank)
      : state_(std::move(state)), rank_(rank), gone_(static_cast<std::size_t>(state_->size())) {}

  ~InprocControl() override {
    if (!me().closed) state_->kill(rank_, "connection closed without good-bye");
  }

  std::string_view name() const override { return "inproc"; }
  int rank() const override { return rank_; }
  int size() const override { return state_->size(); }

  void on_message(MessageHandler handler) override { handle_message_ = std::move(handler); }
  void on_loss(LossHandler handler) override { handle_loss_ = std::move(handler); }

  Status connect(std::span<const int>, Time) override { return {}; }

  void post(int peer, std::vector<std::byte> message) override {
    if (!state_->reaches(rank_, peer) || state_->rank(peer).closed || me().closed) return;
    state_->rank(peer).control.push({InprocNotice::Kind::message, rank_, std::move(message), {}});
  }

  bool progress() override {
    const auto notices = me().control.take_all();
    for (const InprocNotice& notice : notices) take(notice);
    return !notices.empty();
  }

  int wait_fd() const override { return state_->rank(rank_).control.fd(); }

  Status close(Time) override {
    if (me().closed.exchange(true) || me().dead) return {};
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank_) continue;
      state_->rank(peer).control.push({InprocNotice::Kind::good_bye, rank_, {}, {}});
    }
    return {};
  }

  bool has_left(int peer) const override { return gone_[static_cast<std::size_t>(peer)]; }

 private:
  InprocRank& me() { return state_->rank(rank_); }

  void take(const InprocNotice& notice) {
    std::vector<bool>::reference gone = gone_[static_cast<std::size_t>(notice.source)];
    if (gone) return;
    switch (notice.kind) {
      case InprocNotice::Kind::message:
        if (handle_message_) handle_message_(notice.source, notice.bytes);
        return;
      case InprocNotice::Kind::good_bye: gone = true; return;
      case InprocNotice::Kind::loss:
        gone = true;
        if (handle_loss_) handle_loss_(notice.source, notice.cause);
        return;
    }
  }

  const std::shared_ptr<InprocState> state_;
  const int rank_;
  MessageHandler handle_message_;
  LossHandler handle_loss_;
  std::vector<bool> gone_;  // by peer: lost, or has said good-bye
};

}  // namespace

void InprocState::kill(int victim, const std::string& cause) {
  if (rank(victim).dead.exchange(true)) return;
  const auto lose = [&](int listener, int lost) {
    rank(listener).control.push(
        {InprocNotice::Kind::loss, lost, {}, Status(ErrorCode::peer_lost, cause, lost)});
  };
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == victim) continue;
    if (!rank(victim).closed) lose(peer, victim);
    lose(victim, peer);
  }
}

std::unique_ptr<ControlLane> make_inproc_control(std::shared_ptr<InprocState> state, int rank) {
  return std::make_unique<InprocControl>(std::move(state), rank);
}

}  // namespace rueda
