// Names in texts.
#pragma once

#include <string>
#include <string_view>

namespace rueda {

// A name that an application has given, between quotes. What would end a text or a line, or is no
// character, is escaped: "'a\x00b'".
[[nodiscard]] std::string in_quotes(std::string_view name);

}  // namespace rueda
