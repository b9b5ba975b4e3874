#include "coordinator/active_messages.h"

#include <utility>

namespace rueda {

ActiveMessages::ActiveMessages(ControlLane& lane, Metrics& metrics)
    : lane_(lane), metrics_(metrics) {
  lane_.on_message(
      [this](int peer, std::span<const std::byte> message) { receive(peer, message); });
}

void ActiveMessages::handle(ControlMessage kind, Handler handler) {
  handlers_[static_cast<std::size_t>(kind)] = std::move(handler);
}

void ActiveMessages::send(int peer, ControlMessage kind, std::span<const std::byte> payload) {
  std::vector<std::byte> message;
  message.reserve(payload.size() + 1);
  message.push_back(static_cast<std::byte>(kind));
  message.insert(message.end(), payload.begin(), payload.end());
  metrics_.control_messages_sent.add(1);
  metrics_.control_bytes_sent.add(static_cast<std::int64_t>(message.size()));
  lane_.post(peer, std::move(message));
}

void ActiveMessages::receive(int peer, std::span<const std::byte> message) {
  const std::size_t kind =
      message.empty() ? control_messages : static_cast<std::size_t>(message[0]);
  const bool taken = kind < control_messages && handlers_[kind] != nullptr &&
                     handlers_[kind](peer, message.subspan(1));
  if (!taken) metrics_.control_messages_dropped.add(1);
}

}  // namespace rueda
