// A secret that only the ranks of one job or world know. A connection uses it to prove that it
// comes from one of them, without revealing it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/sha256.h"

namespace rueda {

class Key {
 public:
  explicit Key(std::string_view secret);

  // The HMAC-SHA-256 of these parts, each with its length, so that different lists never collide.
  [[nodiscard]] Digest proof(std::initializer_list<std::string_view> parts) const;
  // The same as text, for text messages.
  [[nodiscard]] std::string proof_text(std::initializer_list<std::string_view> parts) const;
  // Another key, from which nothing can be inferred about this one.
  [[nodiscard]] Key derive(std::initializer_list<std::string_view> parts) const;

 private:
  std::vector<std::byte> bytes_;
};

// Compares in constant time for texts of equal length.
[[nodiscard]] bool is_same_secret(std::string_view first, std::string_view second);

}  // namespace rueda
