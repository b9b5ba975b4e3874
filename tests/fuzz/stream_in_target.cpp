// A stream as the rank reads it that is called: the answer to its challenge, then chunks.
#include <cstring>

#include "fuzz/script.h"
#include "fuzz/sockets.h"
#include "tcp/incoming_stream.h"

namespace rueda::fuzz::stream_in_target {

namespace {

const Key key("the key of these streams");

// What the peer says first, given the challenge: frame and all.
Bytes answer_to(const Bytes& challenge) {
  const auto word = std::span(challenge).subspan(frame_header_bytes);
  return frame_of(FrameKind::message, StreamOpening(key, 1, 0).answer(word));
}

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  SocketPair pair;
  IncomingMessages messages(1);
  std::array<std::vector<std::byte>, 4> targets;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    targets[i].resize(script.byte() * std::size_t{3});
    const MutableBytes target(targets[i]);
    static_cast<void>(messages.recv({.sequence = static_cast<std::uint64_t>(i % 3)}, {&target, 1}));
  }
  IncomingStream stream(key, 0, 1, SocketLink(std::move(pair.near), false));
  const Bytes challenge = hear(pair.far);
  require(challenge.size() == frame_header_bytes + StreamOpening::challenge_bytes);
  const bool proves = script.byte() % 4 != 0;
  if (proves) say(pair.far, answer_to(challenge));
  while (!script.is_over()) {
    say(pair.far, script.block());
    stream.mark_ready(1);
    const auto progress = stream.read(messages);
    require(proves || !stream.is_open());
    if (!progress.status.ok()) break;
    stream.send_receipt();
  }
  messages.fail(Status(ErrorCode::transport, "over"));
}

ChunkHeader header_of(std::uint64_t message, std::uint64_t previous, std::uint64_t length,
                      std::uint64_t offset, std::uint32_t bytes, std::uint64_t tag) {
  return {message, previous, length, offset, {.sequence = tag}, bytes, 0};
}

std::vector<Bytes> seeds() {
  const Bytes content(150, std::byte{5});
  const auto as_bytes = [](const ChunkHeader& header) {
    return std::as_bytes(std::span(&header, 1));
  };
  const auto begin = [](int answers) {
    ScriptWriter writer;
    return writer.byte(50).byte(40).byte(30).byte(20).byte(answers);
  };
  const std::span<const std::byte> text(content);
  const ChunkHeader whole = header_of(1, 0, 150, 0, 150, 0);
  const ChunkHeader first = header_of(2, 0, 120, 0, 60, 1);
  const ChunkHeader second = header_of(2, 0, 120, 60, 60, 1);
  const ChunkHeader unexpected = header_of(3, 2, 90, 0, 90, 1);
  const ChunkHeader large = header_of(4, 0, std::uint64_t{1} << 47, 0, 60, 2);
  const ChunkHeader question;
  Bytes several;
  for (const auto& part :
       {as_bytes(whole), text, as_bytes(question), as_bytes(first), text.first(60)}) {
    several.insert(several.end(), part.begin(), part.end());
  }
  return {begin(1).block(several).block(as_bytes(second)).block(text.first(60)).take(),
          begin(1).block(as_bytes(unexpected)).block(text.first(90)).block(several).take(),
          begin(1).block(as_bytes(large)).block(text.first(60)).take(),
          begin(0).block(frame_of(FrameKind::message, text.first(64))).take()};
}

}  // namespace
}  // namespace rueda::fuzz::stream_in_target

namespace rueda::fuzz {

const Target stream_in{"stream_in", stream_in_target::run, stream_in_target::seeds};

}  // namespace rueda::fuzz
