// What ranks of one job, or of one world, know and nobody else: a connection proves by it that it
// comes from one of them, without telling it.
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

  // The HMAC-SHA-256 of these parts, each with its length, so that no two lists give the same text.
  [[nodiscard]] Digest proof(std::initializer_list<std::string_view> parts) const;
  // The same as text, for messages that consist of it.
  [[nodiscard]] std::string proof_text(std::initializer_list<std::string_view> parts) const;
  // Another key, of which nothing can be concluded about this one.
  [[nodiscard]] Key derive(std::initializer_list<std::string_view> parts) const;

 private:
  std::vector<std::byte> bytes_;
};

// Of two texts; takes as long wherever they differ.
[[nodiscard]] bool is_same_secret(std::string_view first, std::string_view second);

}  // namespace rueda
