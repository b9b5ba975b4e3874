// How two ranks authenticate each other when a connection begins. Pure: bytes come in, bytes and
// outcomes go out.
//
//   the rank that calls                  the rank that is called
//   hello      56 bytes: protocol,
//              version, its rank, its
//              call, its proof        →
//                                     ←  welcome    32 bytes, the payload of a frame: its proof
//
// A proof shows that a rank knows the key of the world without revealing it. It is valid for one of
// the two steps, for one pair of ranks in one direction, and for one call, so that it cannot be
// sent back to its author or passed on to a third rank. Nothing else in it is fresh: the called
// rank must accept each call of a rank once, so that an intercepted hello is useless once it has
// arrived, or a later one has. One that was kept from arriving can still be used in its sender's
// place, as its connection could be: frames are not signed.
//
// A rank that leaves says good-bye, with a proof, to ranks that have not said hello yet. Without
// the proof, anything on the network path could pass for a rank that has left cleanly.
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
    incomplete,      // may still become a hello
    valid,           // a hello of `peer`
    other_protocol,  // reported at the first byte that differs
    other_version,
    other_world,  // not another rank of this world, or one that does not prove it
  };
  Outcome outcome = Outcome::incomplete;
  int peer = -1;           // if valid
  std::uint64_t call = 0;  // likewise

  [[nodiscard]] bool is_rejected() const {
    return outcome != Outcome::incomplete && outcome != Outcome::valid;
  }
  // The reason for a rejection, as the predicate of a sentence: "speaks another protocol".
  [[nodiscard]] std::string_view reason() const;
};

class Handshake {
 public:
  static constexpr std::size_t protocol_bytes = 8;
  static constexpr std::size_t hello_bytes = 56;

  // For rank `rank` of `size`. `protocol`: 8 characters that say what the connections are for.
  // `key`: the world's, derived for this protocol alone.
  Handshake(std::string_view protocol, Key key, int rank, int size);

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  // What this rank says to `peer` after connecting to it. `call` tells its connections to this peer
  // apart, if there is to be more than one; its meaning is theirs.
  [[nodiscard]] std::vector<std::byte> hello_to(int peer, std::uint64_t call = 0) const;
  // Checks the beginning of a connection to this rank, as far as it has been read. Bytes after the
  // hello are ignored.
  [[nodiscard]] HelloCheck check_hello(std::span<const std::byte> begin) const;

  // The answer to `peer`, whose hello is valid.
  [[nodiscard]] Digest welcome_to(int peer, std::uint64_t call = 0) const;
  // Whether this is the welcome of `peer`, to which this rank has connected.
  [[nodiscard]] bool is_welcome_of(int peer, std::span<const std::byte> payload,
                                   std::uint64_t call = 0) const;

  // What a leaving rank sends, instead of a welcome, to ranks that connect. Nobody can know it
  // beforehand, and afterwards it is true.
  [[nodiscard]] Digest good_bye() const;
  // Whether this is the good-bye of `peer`, to which this rank has connected.
  [[nodiscard]] bool is_good_bye_of(int peer, std::span<const std::byte> payload) const;

 private:
  static constexpr int anybody = -1;

  [[nodiscard]] Digest proof(std::string_view step, int from, int to, std::uint64_t call) const;

  const std::string protocol_;
  const Key key_;
  const int rank_;
  const int size_;
};

}  // namespace rueda
