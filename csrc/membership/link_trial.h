// A short trial of the links between hosts, from which follows how process sets that span hosts
// exchange which sizes.
#pragma once

#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "plan/link_costs.h"
#include "transport/bootstrap.h"
#include "transport/transport.h"

namespace rueda {

// Collective over all ranks of `world`, whose transport is open and carries nothing else. The first
// rank of each host sends to that of the next, all at once. Every rank gets the figures of the
// slowest link; those of nothing measured where there is one host. Takes some milliseconds. `name`:
// of this trial, among those of this world. Fails on all ranks where a host has not answered at
// `end`, which comes before the ranks' own `deadline`.
[[nodiscard]] Expected<LinkCosts> measure_links(Bootstrap& world, const std::string& name,
                                                Transport& transport,
                                                const std::vector<int>& host_of, Time end,
                                                Time deadline);

}  // namespace rueda
