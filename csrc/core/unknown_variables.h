// Finds misspelled variables: they look like Rueda's, but nothing reads them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rueda {

// Variables that are not options: set by launchers, or read before any init().
[[nodiscard]] std::span<const std::string_view> other_variables();

// One sentence for each of `names` that begins with RUEDA_ and is neither an option's variable nor
// one of other_variables(); it suggests the nearest known one, if one is near. RUEDA_TEST_ and
// RUEDA_BENCH_ are for tests and benchmarks and are always known.
[[nodiscard]] std::vector<std::string> unknown_variables(std::span<const std::string> names);

// The names of this process's variables.
[[nodiscard]] std::vector<std::string> environment_names();

}  // namespace rueda
