// Chooses the data links between hosts: MPI or TCP, whichever is faster in a trial at init.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "plan/link_costs.h"
#include "transport/bootstrap.h"
#include "transport/transport.h"

namespace rueda {

// A kind of link that was tried between hosts.
struct TriedLink {
  std::string transport;  // "mpi", "tcp"
  LinkCosts costs;        // of the slowest link; unmeasured if unusable
  std::string obstacle;   // why it is unusable
};

struct HostLinks {
  std::unique_ptr<Transport> transport;
  LinkCosts costs;
  std::vector<TriedLink> tried;  // the chosen one comes first
};

// Opens links of one kind. Collective.
using OpenLinks = std::function<Expected<std::unique_ptr<Transport>>()>;

// Collective over all ranks of `world`. `first` is open and carries nothing yet. On several hosts
// it is measured. If there is a `second` kind, that is opened and measured too, and chosen if
// faster by is_quicker(). If it cannot be opened or does not answer within 2 s, the first is kept,
// and the second's obstacle says why. All ranks get the same result, except for the obstacle.
[[nodiscard]] Expected<HostLinks> choose_host_links(Bootstrap& world,
                                                    std::unique_ptr<Transport> first,
                                                    const OpenLinks& second,
                                                    const std::vector<int>& host_of, Time deadline);

// The same for links of a later world, without a trial: their costs are those that were measured of
// links of their kind in an earlier world, or else of the links that it used. `tried` is that
// world's, and empty on one host.
[[nodiscard]] HostLinks keep_host_links(std::unique_ptr<Transport> transport,
                                        const std::vector<TriedLink>& tried,
                                        const std::vector<int>& host_of);

}  // namespace rueda
