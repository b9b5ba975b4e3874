// The results as people, or programs, read them.
#pragma once

#include <string>

#include "settings.h"
#include "simulation.h"

namespace rueda::simulate {

[[nodiscard]] std::string as_text(const Settings& settings, const Result& result);
[[nodiscard]] std::string as_json(const Settings& settings, const Result& result);

}  // namespace rueda::simulate
