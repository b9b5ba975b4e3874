// What an addition does to the values of a table, at the rank that owns them.
#pragma once

#include <span>
#include <string_view>

#include "core/status.h"
#include "rueda/server.h"

namespace rueda {

// The rule of that name: one of Rueda's or of the application's; null where there is none.
[[nodiscard]] const UpdateRule* find_update_rule(std::string_view name);

// Whether it is one of Rueda's, which any thread of any rank may apply to any values.
[[nodiscard]] bool is_own_rule(std::string_view name);

// Ok where the rule takes these parameters. Fails with InvalidArgument, which says what it takes.
[[nodiscard]] Status check_parameters(std::string_view name, std::span<const double> parameters);

}  // namespace rueda
