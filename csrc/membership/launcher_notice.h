// Tells `rueda run` how far this rank has got, so that it notices ranks that will never arrive, and
// which ranks do not answer.
#pragma once

#include <cstdint>
#include <string>

#include "core/options.h"
#include "membership/launch.h"

namespace rueda {

enum class Arrival : std::uint8_t {
  waiting,  // looking for the other ranks
  met,      // has found all of them
};

// Sends "waiting RANK SIZE" or "met RANK SIZE" to the abstract stream socket in RUEDA_LAUNCHER, if
// any, unless the rank is one of another launcher within a rank of `rueda run`. Never fails, since
// the launcher may be on another host or gone. Waits at most a second.
void notify_launcher(const Environment& environment, const Launch& launch, Arrival arrival);
// Sends "silent HOST PID": the ranks have continued without this process, which may be alive and
// must end. Otherwise as above.
void report_silent(const Environment& environment, const std::string& host, int process_id);

}  // namespace rueda
