// Frames over a socket, as they come in pieces of any size.
#include "fuzz/script.h"
#include "fuzz/sockets.h"
#include "transport/socket_link.h"

namespace rueda::fuzz::frames_target {

namespace {

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  SocketPair pair;
  SocketLink link(std::move(pair.near), false);
  const std::size_t limit = script.byte() % 2 == 0 ? max_pending_frame_bytes : max_frame_bytes;
  while (!script.is_over()) {
    say(pair.far, script.block());
    const Status status = link.read(1 + script.byte() * std::size_t{16});
    if (!status.ok()) return;
    while (true) {
      const auto frame = link.next_frame(limit);
      if (!frame) return;
      if (!frame.value()) break;
      require(frame.value()->payload.size() <= limit);
    }
  }
}

std::vector<Bytes> seeds() {
  const Bytes payload(40, std::byte{7});
  const Bytes message = frame_of(FrameKind::message, payload);
  const std::span<const std::byte> cut(message);
  return {ScriptWriter()
              .byte(0)
              .block(message)
              .byte(255)
              .block(frame_of(FrameKind::good_bye, {}))
              .byte(255)
              .take(),
          ScriptWriter()
              .byte(1)
              .block(cut.first(5))
              .byte(9)
              .block(cut.subspan(5))
              .byte(0)
              .block(frame_of(FrameKind::welcome, payload))
              .byte(255)
              .take()};
}

}  // namespace
}  // namespace rueda::fuzz::frames_target

namespace rueda::fuzz {

const Target frames{"frames", frames_target::run, frames_target::seeds};

}  // namespace rueda::fuzz
