// SHA-256 (FIPS 180-4), HMAC-SHA-256 (RFC 2104) and a constant-time comparison. With these, a
// process proves that it knows a secret without revealing it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace rueda {

using Digest = std::array<std::byte, 32>;

[[nodiscard]] Digest sha256(std::span<const std::byte> message);
[[nodiscard]] Digest hmac_sha256(std::span<const std::byte> key,
                                 std::span<const std::byte> message);

// The time does not depend on where the two differ. Lengths are not secret: different lengths
// return immediately.
[[nodiscard]] bool equal_in_constant_time(std::span<const std::byte> first,
                                          std::span<const std::byte> second);

[[nodiscard]] std::string hexadecimal(std::span<const std::byte> bytes);

[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace rueda
