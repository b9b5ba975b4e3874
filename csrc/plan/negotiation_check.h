// Whether a received message makes sense: everything that the negotiator takes for granted about
// it.
#pragma once

#include "plan/negotiation_message.h"
#include "plan/response.h"

namespace rueda {

// Checks that ranks are within the set and sorted, that names and extents agree with each other,
// and that ages are times.
[[nodiscard]] bool is_plausible(const UpMessage& message, int set_size);
[[nodiscard]] bool is_plausible(const ResponseList& responses, int set_size);

}  // namespace rueda
