// Finds out by trying which ranks run on the same kernel.
//
// host_identity() is not sufficient: it is the same on virtual machines resumed from one snapshot.
// So each rank listens on a Unix socket with a random name, and all ranks that claim to be on one
// host connect to the first of them. A rank that cannot connect is on another host.
#pragma once

#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "membership/world_facts.h"
#include "transport/bootstrap.h"
#include "transport/socket.h"

namespace rueda {

// Must keep listening until confirm_hosts() has returned. Its address goes into RankFacts::beacon.
// One per rank: the name contains the rank, because even random numbers can be equal on machines
// resumed from one snapshot.
[[nodiscard]] Expected<Listener> light_beacon(int rank);

// Collective: gives different host_identity values in `ranks` to ranks that claim the same host but
// cannot reach each other. Each rank connects once, unless there are such ranks.
// ErrorCode::initialization.
Status confirm_hosts(Bootstrap& bootstrap, std::vector<RankFacts>& ranks, Time deadline);

}  // namespace rueda
