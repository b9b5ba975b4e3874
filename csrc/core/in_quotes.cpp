#include "core/in_quotes.h"

#include <cstdio>

namespace rueda {

std::string in_quotes(std::string_view name) {
  std::string text = "'";
  for (const char character : name) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte >= 0x20 && byte != 0x7f) {
      text += character;
      continue;
    }
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\x%02x", byte);
    text += escape;
  }
  return text + "'";
}

}  // namespace rueda
