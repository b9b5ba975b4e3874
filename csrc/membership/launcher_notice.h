// Tells `rueda run` how far this rank has come, so that it notices a rank that will never come.
#pragma once

#include <cstdint>

#include "core/options.h"
#include "membership/launch.h"

namespace rueda {

enum class Arrival : std::uint8_t {
  waiting,  // looks for the other ranks
  met,      // has found all of them
};

// Sends "waiting RANK SIZE" or "met RANK SIZE" to the abstract stream socket that RUEDA_LAUNCHER
// names, if any. Never fails, for the launcher may be on another host or gone, and waits for a
// second at most.
void notify_launcher(const Environment& environment, const Launch& launch, Arrival arrival);

}  // namespace rueda
