// What a connection begins with: at the listener of a rank, and as the pure check sees it.
#include <algorithm>

#include "fuzz/script.h"
#include "fuzz/sockets.h"
#include "transport/pending_handshakes.h"

namespace rueda::fuzz::hello_target {

namespace {

constexpr int size = 4;

Handshake handshake_of(int rank) {
  return {"ruedafuz", Key("the world's key"), rank, size};
}

// A rank that lets each peer in, and forgets it at once.
class Called {
 public:
  Called() {
    auto listener = listen_on("unix:@rueda-fuzz-" + random_name());
    require(listener.ok());
    address_ = listener->address;
    std::vector<Listener> listeners;
    listeners.push_back(std::move(listener).value());
    pending_.emplace(
        "fuzz", handshake_, std::move(listeners),
        PendingHandshakes::Owner{[](int, std::uint64_t) { return true; },
                                 [this](int peer, std::uint64_t, const SocketLink& link) {
                                   require(peer > 0 && peer < size);
                                   require(link.is_open());
                                   ++admitted_;
                                 }});
    require(pending_->open());
  }

  // Whether it was let in, having said these things.
  bool lets_in(Script& script) {
    admitted_ = 0;
    auto fd = start_connecting(address_);
    require(fd.ok());
    while (!script.is_over()) {
      say(fd.value(), script.block());
      pending_->progress();
    }
    fd.value().reset();
    pending_->progress();
    require(admitted_ <= 1);
    return admitted_ == 1;
  }

 private:
  const Handshake handshake_ = handshake_of(0);
  std::string address_;
  std::optional<PendingHandshakes> pending_;
  int admitted_ = 0;
};

Bytes concatenated(Script script) {
  Bytes all;
  while (!script.is_over()) {
    const auto block = script.block();
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

void run(std::span<const std::byte> bytes) {
  static Called called;
  static const Handshake handshake = handshake_of(0);
  const Bytes said = concatenated(Script(bytes));
  const HelloCheck check = handshake.check_hello(said);
  bool is_valid = false;
  for (int peer = 1; peer < size; ++peer) {
    const Bytes hello = handshake_of(peer).hello_to(0);
    is_valid = is_valid || (said.size() >= hello.size() &&
                            std::equal(hello.begin(), hello.end(), said.begin()));
    require(!handshake.is_welcome_of(peer, bytes) || bytes.size() == sizeof(Digest));
  }
  require((check.outcome == HelloCheck::Outcome::valid) == is_valid);
  Script script(bytes);
  require(called.lets_in(script) == is_valid);
}

std::vector<Bytes> seeds() {
  const Bytes hello = handshake_of(2).hello_to(0);
  const std::span<const std::byte> cut(hello);
  return {ScriptWriter().block(hello).take(),
          ScriptWriter().block(cut.first(20)).block(cut.subspan(20)).block(hello).take(),
          ScriptWriter().block(handshake_of(1).hello_to(3)).take()};
}

}  // namespace
}  // namespace rueda::fuzz::hello_target

namespace rueda::fuzz {

const Target hello{"hello", hello_target::run, hello_target::seeds};

}  // namespace rueda::fuzz
