#include "transport/control_socket.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "transport/connections.h"
#include "transport/key.h"
#include "transport/socket.h"

namespace rueda {

namespace {

// Messages travel as the frames of connections; those to this rank itself wait in a queue.
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
  bool progress() override { return connections_.progress(); }
  void close_after_fork() override { connections_.close_after_fork(); }

  Status connect(std::span<const int> peers, Time deadline) override {
    return connections_.connect(peers, deadline);
  }
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

// Those that are posted meanwhile have their turn next time.
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

// For ranks of this host, and one more for those of others, if there are any.
Expected<std::vector<Listener>> listen_for(std::span<const int> host_of,
                                           const std::string& interface) {
  std::vector<Listener> listeners;
  auto local = listen_on(str("unix:@rueda-", random_name()));
  if (!local.ok()) return local.status();
  listeners.push_back(std::move(local).value());
  if (std::adjacent_find(host_of.begin(), host_of.end(), std::not_equal_to<>()) == host_of.end()) {
    return listeners;
  }
  const auto host = reachable_address(interface);
  if (!host.ok()) return host.status();
  auto remote = listen_on(join_tcp(host.value(), 0));
  if (!remote.ok()) return remote.status();
  listeners.push_back(std::move(remote).value());
  return listeners;
}

// What a rank tells of itself.
struct Contact {
  std::string local;   // its address for ranks of its host
  std::string remote;  // for those of others; may be missing
  std::string word;    // random: rank 0's is the world's

  [[nodiscard]] std::string encode() const { return local + " " + remote + " " + word; }
  static Contact decode(const std::string& text) {
    const auto first = text.find(' ');
    const auto last = text.rfind(' ');
    if (first == last) return {};  // nonsense, which nobody can reach
    return {text.substr(0, first), text.substr(first + 1, last - first - 1), text.substr(last + 1)};
  }
};

Contact contact_of(const std::vector<Listener>& listeners) {
  const bool has_remote = listeners.size() > 1;
  return {listeners.front().address, has_remote ? listeners[1].address : "", random_name()};
}

}  // namespace

Expected<std::unique_ptr<ControlLane>> open_control_socket(Bootstrap& bootstrap,
                                                           std::span<const int> host_of,
                                                           const std::string& interface,
                                                           Time deadline) {
  const int rank = bootstrap.rank();
  const Status failed(ErrorCode::initialization, "the control lane cannot be opened");
  auto listeners = listen_for(host_of, interface);
  const auto told = bootstrap.allgather(
      "control",
      listeners.ok() ? Expected<std::string>(contact_of(*listeners).encode()) : listeners.status(),
      deadline);
  if (!listeners.ok()) return failed.because(listeners.status());
  if (!told.ok()) return failed.because(told.status());
  std::vector<std::string> addresses;
  for (std::size_t peer = 0; peer < told->size(); ++peer) {
    const Contact contact = Contact::decode((*told)[peer]);
    const bool same_host = host_of[peer] == host_of[static_cast<std::size_t>(rank)];
    addresses.push_back(same_host ? contact.local : contact.remote);
  }
  // Of the word that the ranks hear of each other, and of what they knew before: whoever listens to
  // the bootstrap alone does not know it.
  const std::string world = Contact::decode(told->front()).word;
  const Key key = Key(bootstrap.secret()).derive({"rueda control lane", world});
  auto lane = std::make_unique<SocketControl>(
      Connections::Settings{.name = "control lane",
                            .protocol = "ruedactl",
                            .rank = rank,
                            .addresses = std::move(addresses),
                            .listeners = std::move(listeners).value(),
                            .key = key});
  if (const Status opened = lane->open(); !opened.ok()) return failed.because(opened);
  return std::unique_ptr<ControlLane>(std::move(lane));
}

}  // namespace rueda
