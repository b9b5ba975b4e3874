#include "transport/key.h"

#include "core/strings.h"

namespace rueda {

Key::Key(std::string_view secret) {
  const auto bytes = bytes_of(secret);
  bytes_.assign(bytes.begin(), bytes.end());
}

Digest Key::proof(std::initializer_list<std::string_view> parts) const {
  std::string text;
  for (const std::string_view part : parts) text.append(str(part.size(), ":")).append(part);
  return hmac_sha256(bytes_, bytes_of(text));
}

std::string Key::proof_text(std::initializer_list<std::string_view> parts) const {
  return hexadecimal(proof(parts));
}

Key Key::derive(std::initializer_list<std::string_view> parts) const {
  return Key(proof_text(parts));
}

bool is_same_secret(std::string_view first, std::string_view second) {
  return equal_in_constant_time(bytes_of(first), bytes_of(second));
}

}  // namespace rueda
