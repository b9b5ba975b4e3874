// How two ranks make sure of each other when a connection begins. Pure: bytes come in, bytes and
// outcomes go out.
//
//   the rank that calls                  the rank that is called
//   hello      48 bytes: protocol,
//              version, its rank,
//              its proof              →
//                                     ←  welcome    32 bytes, the payload of a frame: its proof
//
// A proof shows that a rank knows the key of the world without telling it. It holds for one of the
// two steps and one pair of ranks in one direction, so that none can be sent back to its author or
// passed on to a third rank. Nothing in it is fresh: whoever is called must let in one connection
// of each rank, once, so that a hello that was heard on the way is of no use.
//
// A rank that leaves says good-bye, with a proof, to who has not said hello yet: without it nothing
// on the way could be told from a rank that has left in good order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/sha256.h"
#include "transport/key.h"

namespace rueda {

// What the first bytes of a connection turned out to be.
struct HelloCheck {
  enum class Outcome : std::uint8_t {
    incomplete,      // may become a hello
    valid,           // a hello of `peer`
    other_protocol,  // found with the first byte that differs
    other_version,
    other_world,  // no other rank of this world, or one that does not prove it
  };
  Outcome outcome = Outcome::incomplete;
  int peer = -1;  // where valid

  [[nodiscard]] bool is_rejected() const {
    return outcome != Outcome::incomplete && outcome != Outcome::valid;
  }
  // Of a rejection, as the rest of a sentence about the connection: "speaks another protocol".
  [[nodiscard]] std::string_view reason() const;
};

class Handshake {
 public:
  static constexpr std::size_t protocol_bytes = 8;
  static constexpr std::size_t hello_bytes = 48;

  // For rank `rank` of `size`. `protocol`: 8 characters that tell what the connections are for.
  // `key`: the world's, and derived for this protocol alone.
  Handshake(std::string_view protocol, Key key, int rank, int size);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // What this rank says to `peer`, which it has called.
  [[nodiscard]] std::vector<std::byte> hello_to(int peer) const;
  // What a connection to this rank begins with, as far as it has been read. Bytes after the hello
  // are not looked at.
  [[nodiscard]] HelloCheck check_hello(std::span<const std::byte> begin) const;

  // What this rank answers to `peer`, whose hello is valid.
  [[nodiscard]] Digest welcome_to(int peer) const;
  // Whether this is what `peer`, which was called, answers.
  [[nodiscard]] bool is_welcome_of(int peer, std::span<const std::byte> payload) const;

  // What this rank says, in place of a welcome, to whoever calls while it leaves. Nobody knows it
  // before, and afterwards it is true.
  [[nodiscard]] Digest good_bye() const;
  // Whether this is what `peer`, which was called, says as it leaves.
  [[nodiscard]] bool is_good_bye_of(int peer, std::span<const std::byte> payload) const;

 private:
  static constexpr int anybody = -1;

  [[nodiscard]] Digest proof(std::string_view step, int from, int to) const;

  const std::string protocol_;
  const Key key_;
  const int rank_;
  const int size_;
};

}  // namespace rueda
