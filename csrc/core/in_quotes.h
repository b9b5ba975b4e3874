// Quotes names for messages.
#pragma once

#include <string>
#include <string_view>

namespace rueda {

// A name given by the application, in quotes. Control characters, which could end a text or a line,
// are escaped: "'a\x00b'".
[[nodiscard]] std::string in_quotes(std::string_view name);

}  // namespace rueda
