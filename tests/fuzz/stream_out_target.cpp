// A stream as the rank reads it that has opened it: welcome, challenge, confirmation, receipts.
#include <sys/epoll.h>

#include "fuzz/script.h"
#include "fuzz/sockets.h"
#include "tcp/outgoing_stream.h"

namespace rueda::fuzz::stream_out_target {

namespace {

const Key key("the key of these streams");
const Key world("the key of this world");

Handshake handshake_of(int rank) {
  return {"ruedafuz", world, rank, 2};
}

// How the peer answers; what it says beyond comes from the input.
enum class Step { said, welcomes, challenges, confirms };
constexpr int steps = 4;

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  static const Handshake own = handshake_of(0);
  static const Handshake other = handshake_of(1);
  const Bytes content(1000, std::byte{3});
  const ConstBytes span(content);
  SocketPair pair;
  OutgoingMessages messages(1);
  OutgoingStream stream(own, key, 1, std::move(pair.near));
  StreamOpening opening(key, 0, 1);
  for (std::uint64_t number = 0; number < 3; ++number) {
    static_cast<void>(messages.send({.sequence = number}, {&span, 1}));
  }
  Bytes heard;
  while (!script.is_over()) {
    switch (static_cast<Step>(script.below(steps))) {
      case Step::said: say(pair.far, script.block()); break;
      case Step::welcomes: say(pair.far, frame_of(FrameKind::welcome, other.welcome_to(0))); break;
      case Step::challenges:
        say(pair.far, frame_of(FrameKind::message, opening.challenge()));
        break;
      case Step::confirms: {
        const std::size_t begin = Handshake::hello_bytes + frame_header_bytes;
        if (heard.size() < begin + StreamOpening::answer_bytes) break;
        const auto answer = std::span(heard).subspan(begin, StreamOpening::answer_bytes);
        if (const auto confirmation = opening.confirm(answer)) {
          say(pair.far, frame_of(FrameKind::message, *confirmation));
        }
        break;
      }
    }
    stream.mark_ready(EPOLLIN | EPOLLOUT);
    if (!stream.read(messages).ok()) break;
    if (stream.is_open() && !stream.write(messages, 300, Clock::now()).ok()) break;
    const Bytes more = hear(pair.far);
    heard.insert(heard.end(), more.begin(), more.end());
  }
  stream.give_back(messages);
  messages.fail(Status(ErrorCode::transport, "over"));
}

std::vector<Bytes> seeds() {
  const auto receipt = [](Receipt count) {
    const auto bytes = std::as_bytes(std::span(&count, 1));
    return Bytes(bytes.begin(), bytes.end());
  };
  const auto opened = [] {
    ScriptWriter writer;
    return writer.byte(0).block({}).byte(1).byte(2).byte(3);
  };
  return {opened().byte(0).block(receipt(3)).byte(0).block(receipt(6)).take(),
          opened().byte(0).block(receipt(12)).take(), opened().byte(0).block(receipt(100)).take(),
          ScriptWriter().byte(2).byte(1).take()};
}

}  // namespace
}  // namespace rueda::fuzz::stream_out_target

namespace rueda::fuzz {

const Target stream_out{"stream_out", stream_out_target::run, stream_out_target::seeds};

}  // namespace rueda::fuzz
