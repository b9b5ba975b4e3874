// The rendezvous: its words, and the store as who connects to it sees it, with the secret or
// without.
#include <string>

#include "core/wait_fd.h"
#include "fuzz/script.h"
#include "fuzz/sockets.h"
#include "membership/rendezvous_store.h"

namespace rueda::fuzz::rendezvous_target {

namespace {

using Verb = RendezvousWords::Verb;
const std::string secret = "the secret of this job";

// libFuzzer's timer interrupts waits.
void wait_for_news(const SocketLink& link) {
  require(becomes_readable(link.fd(), Clock::now() + seconds(20)));
}

// The next frame's words; nothing where the store has closed the connection.
std::optional<RendezvousWords> next(SocketLink& link) {
  while (true) {
    const auto frame = link.next_frame();
    if (!frame) return std::nullopt;
    if (frame.value()) return RendezvousWords::parse(frame.value()->payload).value();
    wait_for_news(link);
    if (!link.read().ok()) return std::nullopt;
  }
}

void tell(SocketLink& link, const RendezvousWords& words) {
  link.enqueue(words.to_frame());
  static_cast<void>(link.write());
}

bool enter(SocketLink& link, std::uint32_t rank) {
  RendezvousHello hello{rank, 2, random_name(), {}};
  tell(link, {Verb::hello, rank, 2, hello.rank_word, {}});
  const auto challenge = next(link);
  if (!challenge || challenge->verb != Verb::challenge) return false;
  hello.store_word = challenge->key;
  tell(link, {Verb::prove, 0, 0, {}, hello.proof_of_rank(RendezvousHello::key_of(secret))});
  const auto answer = next(link);
  return answer && answer->verb == Verb::ok;
}

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  const auto words = RendezvousWords::parse(script.rest());
  if (words) {
    const auto frame = words.value().to_frame();
    const auto again = RendezvousWords::parse(std::span(frame).subspan(frame_header_bytes));
    require(again && again->key == words->key && again->value == words->value);
    if (const auto texts = split_texts(words->value)) {
      std::string joined;
      for (const std::string& text : *texts) append_text(joined, text);
      require(joined == words->value);
    }
  }
  auto listener = listen_on("unix:@rueda-fuzz-" + random_name());
  require(listener.ok());
  const std::string address = listener->address;
  RendezvousStore store(std::move(listener).value(), 2, secret);
  auto fd = start_connecting(address);
  require(fd.ok());
  SocketLink link(std::move(fd).value(), false);
  if (script.byte() % 2 == 1) require(enter(link, 1));
  const auto said = script.rest();
  link.enqueue({said.begin(), said.end()});
  static_cast<void>(link.write());
  link.end();
  // The store answers what it understands, and closes the connection.
  while (link.is_open()) {
    wait_for_news(link);
    const Status status = link.read();
    link.consume(link.inbox().size());
    if (!status.ok()) link.drop();
  }
}

std::vector<Bytes> seeds() {
  const std::string word(rendezvous_word_length, 'a');
  const auto frame = [](const RendezvousWords& words) { return words.to_frame(); };
  const Bytes hello = frame({Verb::hello, 1, 2, word, {}});
  const Bytes prove = frame({Verb::prove, 0, 0, {}, std::string(64, '0')});
  const Bytes put = frame({Verb::put, 0, 0, "key", "value"});
  const Bytes get = frame({Verb::get, 0, 0, "key", {}});
  const Bytes barrier = frame({Verb::barrier, 0, 0, {}, {}});
  const Bytes missing = frame({Verb::missing, 0, 0, {}, {}});
  return {ScriptWriter().byte(0).raw(hello).raw(prove).take(),
          ScriptWriter().byte(0).raw(hello).raw(hello).take(),
          ScriptWriter().byte(0).raw(put).take(),
          ScriptWriter().byte(1).raw(put).raw(get).raw(put).take(),
          ScriptWriter().byte(1).raw(barrier).raw(missing).raw(get).take()};
}

}  // namespace
}  // namespace rueda::fuzz::rendezvous_target

namespace rueda::fuzz {

const Target rendezvous{"rendezvous", rendezvous_target::run, rendezvous_target::seeds};

}  // namespace rueda::fuzz
