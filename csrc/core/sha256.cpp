#include "core/sha256.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace rueda {

namespace {

constexpr std::size_t block_bytes = 64;

// The fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
constexpr std::array<std::uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

std::uint32_t big_endian(const std::byte* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

// The names are those of FIPS 180-4, 6.2.2.
void compress(State& state, const std::byte* block) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t t = 0; t < 16; ++t) w[t] = big_endian(block + 4 * t);
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t choice = (e & f) ^ (~e & g);
    const std::uint32_t t1 = h + sum1 + choice + round_constants[t] + w[t];
    const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + sum0 + majority;
  }
  const State added{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
}

}  // namespace

Digest sha256(std::span<const std::byte> message) {
  State state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::size_t done = 0;
  for (; message.size() - done >= block_bytes; done += block_bytes) {
    compress(state, message.data() + done);
  }
  // The rest, a single 1 bit, zeros, and the length in bits: one block or two.
  std::array<std::byte, 2 * block_bytes> tail{};
  const std::size_t rest = message.size() - done;
  std::copy_n(message.data() + done, rest, tail.begin());
  tail[rest] = std::byte{0x80};
  const std::size_t tail_bytes = rest + 9 <= block_bytes ? block_bytes : 2 * block_bytes;
  const std::uint64_t bits = std::uint64_t{message.size()} * 8;
  for (std::size_t i = 0; i < 8; ++i) {
    tail[tail_bytes - 1 - i] = static_cast<std::byte>(bits >> (8 * i));
  }
  for (std::size_t at = 0; at < tail_bytes; at += block_bytes) compress(state, tail.data() + at);
  Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  std::array<std::byte, block_bytes> padded{};
  if (key.size() > block_bytes) {
    const Digest shorter = sha256(key);
    std::copy(shorter.begin(), shorter.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  const auto hash = [&padded](std::byte pad, std::span<const std::byte> rest) {
    std::vector<std::byte> text;
    text.reserve(block_bytes + rest.size());
    for (const std::byte each : padded) text.push_back(each ^ pad);
    text.insert(text.end(), rest.begin(), rest.end());
    return sha256(text);
  };
  const Digest inner = hash(std::byte{0x36}, message);
  return hash(std::byte{0x5c}, inner);
}

bool equal_in_constant_time(std::span<const std::byte> first, std::span<const std::byte> second) {
  if (first.size() != second.size()) return false;
  // Volatile, so that the loop does not end early once its outcome is known.
  volatile std::uint8_t differing = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    differing = differing | std::to_integer<std::uint8_t>(first[i] ^ second[i]);
  }
  return differing == 0;
}

std::string hexadecimal(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte >> 4)];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace rueda
