// Control messages reach their handlers; invalid ones are dropped.
#include "coordinator/active_messages.h"

#include <catch2/catch.hpp>

#include "ranks/rank_threads.h"
#include "transport/inproc.h"
#include "unit/bytes.h"

namespace rueda::test::active_messages_test {

TEST_CASE("each kind of message reaches its own handler, with its payload, in order") {
  InprocHub hub(2);
  const auto sender = hub.make_control_lane(0);
  const auto receiver = hub.make_control_lane(1);
  Metrics sent;
  Metrics received;
  ActiveMessages out(*sender, sent);
  ActiveMessages in(*receiver, received);
  std::vector<std::pair<ControlMessage, std::vector<std::byte>>> taken;
  for (const auto kind : {ControlMessage::negotiation, ControlMessage::loss}) {
    in.handle(kind, [&taken, kind](int peer, std::span<const std::byte> payload) {
      CHECK(peer == 0);
      taken.push_back({kind, {payload.begin(), payload.end()}});
      return true;
    });
  }
  out.send(1, ControlMessage::loss, bytes({1, 2}));
  out.send(1, ControlMessage::negotiation, {});
  out.send(1, ControlMessage::loss, bytes({3}));
  while (receiver->progress()) continue;
  CHECK(taken == decltype(taken){{ControlMessage::loss, bytes({1, 2})},
                                 {ControlMessage::negotiation, {}},
                                 {ControlMessage::loss, bytes({3})}});
  CHECK(sent.control_messages_sent.get() == 3);
  CHECK(sent.control_bytes_sent.get() == 6);
  CHECK(received.control_messages_dropped.get() == 0);
}

TEST_CASE("what is empty, unknown or malformed is dropped and counted") {
  InprocHub hub(2);
  const auto sender = hub.make_control_lane(0);
  const auto receiver = hub.make_control_lane(1);
  Metrics metrics;
  ActiveMessages in(*receiver, metrics);
  int taken = 0;
  in.handle(ControlMessage::failure, [&](int, std::span<const std::byte> payload) {
    if (payload.size() != 1) return false;
    ++taken;
    return true;
  });
  const int failure = static_cast<int>(ControlMessage::failure);
  const int unhandled = static_cast<int>(ControlMessage::loss);
  const auto nonsense = {bytes({}),       bytes({unhandled}), bytes({control_messages}),
                         bytes({255, 1}), bytes({failure}),   bytes({failure, 1, 2})};
  for (const auto& message : nonsense) sender->post(1, message);
  sender->post(1, bytes({failure, 7}));
  while (receiver->progress()) continue;
  CHECK(metrics.control_messages_dropped.get() == static_cast<std::int64_t>(nonsense.size()));
  CHECK(taken == 1);
}

}  // namespace rueda::test::active_messages_test
