// Which ranks run on one kernel, found out by trying.
//
// host_identity() alone does not tell: virtual machines that were resumed from one snapshot have
// the same. So each rank listens at a Unix socket with a random name, and the ranks that claim to
// be on one host connect to the first of them. Whoever cannot is on another host.
#pragma once

#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "membership/world_facts.h"
#include "transport/bootstrap.h"
#include "transport/socket.h"

namespace rueda {

// To be listened at until confirm_hosts() has returned. Its address goes into RankFacts::beacon.
// One for each rank: its name holds the rank's number, because even random numbers may be the same
// on machines that were resumed from one snapshot.
[[nodiscard]] Expected<Listener> light_beacon(int rank);

// Collective: makes host_identity of `ranks` different for ranks that cannot reach each other
// though they claim to be on one host. Each rank connects once, unless there are such ranks.
// ErrorCode::initialization.
Status confirm_hosts(Bootstrap& bootstrap, std::vector<RankFacts>& ranks, Time deadline);

}  // namespace rueda
