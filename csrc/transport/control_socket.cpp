#include "transport/control_socket.h"

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "transport/connections.h"
#include "transport/endpoints.h"

namespace rueda {

namespace {

// Messages travel as frames of the connections; those to this rank itself wait in a queue.
class SocketControl final : public ControlLane {
 public:
  explicit SocketControl(Connections::Settings settings)
      : connections_(std::move(settings),
                     {[this](int peer, auto message) { deliver(peer, message); },
                      [this](int peer, const Status& cause) {
                        if (handle_loss_) handle_loss_(peer, cause);
                      },
                      [this] { deliver_own(); }}) {}

  Status open() { return connections_.open(); }

  std::string_view name() const override { return "socket"; }
  int rank() const override { return connections_.rank(); }
  int size() const override { return connections_.size(); }
  void on_message(MessageHandler handler) override { handle_message_ = std::move(handler); }
  void on_loss(LossHandler handler) override { handle_loss_ = std::move(handler); }
  int wait_fd() const override { return connections_.wait_fd(); }
  bool has_left(int peer) const override { return connections_.has_left(peer); }
  bool was_connected(int peer) const override { return connections_.was_connected(peer); }
  bool progress() override { return connections_.progress(); }
  void close_after_fork() override { connections_.close_after_fork(); }

  Status connect(std::span<const int> peers, Time deadline) override {
    return connections_.connect(peers, deadline);
  }
  void watch_end(int peer, PeerEnd end) override { connections_.watch_end(peer, std::move(end)); }
  void post(int peer, std::vector<std::byte> message) override;
  Status close(Time deadline) override;

 private:
  void deliver(int peer, std::span<const std::byte> message);
  void deliver_own();

  MessageHandler handle_message_;
  LossHandler handle_loss_;
  std::deque<std::vector<std::byte>> own_;  // messages to itself
  Connections connections_;
};

void SocketControl::post(int peer, std::vector<std::byte> message) {
  if (peer != rank()) return connections_.send(peer, message);
  if (!connections_.is_running()) return;
  own_.push_back(std::move(message));
  connections_.wake();
}

// Messages posted meanwhile are delivered next time.
void SocketControl::deliver_own() {
  const auto own = std::exchange(own_, {});
  for (const auto& message : own) deliver(rank(), message);
}

void SocketControl::deliver(int peer, std::span<const std::byte> message) {
  if (handle_message_) handle_message_(peer, message);
}

Status SocketControl::close(Time deadline) {
  const auto left = connections_.close(deadline);
  if (left.empty()) return {};
  return Status(
      ErrorCode::timeout,
      str("control messages to ", describe_ranks(left), " were not sent before the deadline"),
      left.front());
}

}  // namespace

Expected<std::unique_ptr<ControlLane>> open_control_socket(Bootstrap& bootstrap,
                                                           std::span<const int> host_of,
                                                           const std::string& interface,
                                                           Time deadline,
                                                           Duration network_timeout) {
  const Status failed(ErrorCode::initialization, "the control lane cannot be opened");
  auto settings = exchange_endpoints(bootstrap,
                                     {.name = "control lane",
                                      .key = "control",
                                      .protocol = "ruedactl",
                                      .network_timeout = network_timeout},
                                     host_of, interface, deadline);
  if (!settings) return failed.because(settings.status());
  auto lane = std::make_unique<SocketControl>(std::move(settings).value());
  if (const Status opened = lane->open(); !opened.ok()) return failed.because(opened);
  return std::unique_ptr<ControlLane>(std::move(lane));
}

}  // namespace rueda
