// A short trial of the links between hosts. The result decides how process sets that span hosts
// exchange each size.
#pragma once

#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "plan/link_costs.h"
#include "transport/bootstrap.h"
#include "transport/transport.h"

namespace rueda {

// Collective over all ranks of `world`, whose transport is open and otherwise idle. The first rank
// of each host sends to that of the next, all at once. Every rank gets the figures of the slowest
// link, or none on a single host. Takes some milliseconds. `name`: unique among the trials of this
// world. Fails on all ranks if a host has not answered by `end`, which is earlier than the ranks'
// own `deadline`.
[[nodiscard]] Expected<LinkCosts> measure_links(Bootstrap& world, const std::string& name,
                                                Transport& transport,
                                                const std::vector<int>& host_of, Time end,
                                                Time deadline);

}  // namespace rueda
