// Leveled messages on standard error, prefixed with the rank. RUEDA_LOG_LEVEL sets the level.
#pragma once

#include <string>
#include <string_view>

#include "core/strings.h"

namespace rueda {

enum class LogLevel { trace, debug, info, warning, error, off };

// The level with this name; `warning` for an unknown name.
[[nodiscard]] LogLevel log_level_of(std::string_view name);

void set_log_level(LogLevel level);
// The number that prefixes every line; -1 (the default) prints none.
void set_log_rank(int rank);
[[nodiscard]] bool is_logged(LogLevel level);
void write_log(LogLevel level, std::string_view message);

template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (is_logged(level)) write_log(level, str(parts...));
}

}  // namespace rueda
