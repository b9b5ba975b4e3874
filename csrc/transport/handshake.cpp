#include "transport/handshake.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <utility>

namespace rueda {

namespace {

constexpr std::uint32_t handshake_version = 3;

// The wire format.
struct Hello {
  std::array<char, Handshake::protocol_bytes> protocol{};
  std::uint32_t version = handshake_version;
  std::uint32_t rank = 0;
  std::uint64_t call = 0;
  Digest proof{};
};
static_assert(sizeof(Hello) == Handshake::hello_bytes);

}  // namespace

std::string_view HelloCheck::reason() const {
  switch (outcome) {
    case Outcome::incomplete:
    case Outcome::valid: break;
    case Outcome::other_protocol: return "speaks another protocol";
    case Outcome::other_version: return "is of another version of Rueda";
    case Outcome::other_world: return "is not of this world";
  }
  return {};
}

Handshake::Handshake(std::string_view protocol, Key key, int rank, int size)
    : protocol_(protocol), key_(std::move(key)), rank_(rank), size_(size) {
  assert(protocol.size() == protocol_bytes);
}

Digest Handshake::proof(std::string_view step, int from, int to, std::uint64_t call) const {
  return key_.proof({step, std::to_string(from), std::to_string(to), std::to_string(call)});
}

std::vector<std::byte> Handshake::hello_to(int peer, std::uint64_t call) const {
  Hello hello;
  std::copy_n(protocol_.begin(), protocol_bytes, hello.protocol.begin());
  hello.rank = static_cast<std::uint32_t>(rank_);
  hello.call = call;
  hello.proof = proof("hello", rank_, peer, call);
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  return {bytes.begin(), bytes.end()};
}

HelloCheck Handshake::check_hello(std::span<const std::byte> begin) const {
  using Outcome = HelloCheck::Outcome;
  const std::size_t known = std::min(begin.size(), protocol_bytes);
  if (known > 0 && std::memcmp(begin.data(), protocol_.data(), known) != 0) {
    return {Outcome::other_protocol};
  }
  if (begin.size() < hello_bytes) return {Outcome::incomplete};
  Hello hello;
  std::memcpy(&hello, begin.data(), sizeof hello);
  if (hello.version != handshake_version) return {Outcome::other_version};
  const int peer = static_cast<int>(hello.rank);
  const bool is_peer = peer >= 0 && peer < size_ && peer != rank_;
  if (!is_peer || !equal_in_constant_time(hello.proof, proof("hello", peer, rank_, hello.call))) {
    return {Outcome::other_world};
  }
  return {Outcome::valid, peer, hello.call};
}

Digest Handshake::welcome_to(int peer, std::uint64_t call) const {
  return proof("welcome", rank_, peer, call);
}

bool Handshake::is_welcome_of(int peer, std::span<const std::byte> payload,
                              std::uint64_t call) const {
  return equal_in_constant_time(payload, proof("welcome", peer, rank_, call));
}

Digest Handshake::good_bye() const {
  return proof("good-bye", rank_, anybody, 0);
}

bool Handshake::is_good_bye_of(int peer, std::span<const std::byte> payload) const {
  return equal_in_constant_time(payload, proof("good-bye", peer, anybody, 0));
}

}  // namespace rueda
