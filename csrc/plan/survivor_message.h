// What members of an epoch that broke tell each other, and its encoding (see SurvivorAgreement).
#pragma once

#include <cstdint>

namespace rueda {

// How a member was lost. `ended`: its process is gone for good. `unreachable`: it is silent, and
// may live.
enum class Loss : std::uint8_t { ended, unreachable };

}  // namespace rueda
