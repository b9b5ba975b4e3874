// Whether what was received makes sense: everything that the negotiator takes for granted about a
// message.
#pragma once

#include "plan/negotiation_message.h"
#include "plan/response.h"

namespace rueda {

// Ranks within the set and sorted, names and extents that agree with each other, ages that are
// times.
[[nodiscard]] bool is_plausible(const UpMessage& message, int set_size);
[[nodiscard]] bool is_plausible(const ResponseList& responses, int set_size);

}  // namespace rueda
