// What an addition does to the values of a table, at the rank that owns them.
#pragma once

#include <span>
#include <string_view>

#include "core/status.h"
#include "rueda/server.h"

namespace rueda {

// The rule with this name, built-in or registered by the application; null if there is none.
[[nodiscard]] const UpdateRule* find_update_rule(std::string_view name);

// Whether it is built in; any thread of any rank may apply those to any values.
[[nodiscard]] bool is_own_rule(std::string_view name);

// Ok if the rule takes these parameters. Fails with InvalidArgument, which says what it takes.
[[nodiscard]] Status check_parameters(std::string_view name, std::span<const double> parameters);

}  // namespace rueda
