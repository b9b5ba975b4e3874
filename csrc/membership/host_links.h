// What carries data between hosts: MPI or TCP, whichever a trial at init finds quicker.
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
  LinkCosts costs;        // of the slowest link; nothing is measured where it cannot be used
  std::string obstacle;   // why it cannot be used
};

struct HostLinks {
  std::unique_ptr<Transport> transport;
  LinkCosts costs;
  std::vector<TriedLink> tried;  // the one that was chosen comes first
};

// Opens links of one kind. Collective.
using OpenLinks = std::function<Expected<std::unique_ptr<Transport>>()>;

// Collective over all ranks of `world`. `first` is open and carries nothing yet. On several hosts
// it is measured, and where there is a `second` kind, that is opened and measured, too: it is taken
// where it is quicker, as is_quicker() has it. Where it cannot be opened or does not answer within
// 2 s, the first is left, and its obstacle tells why. Every rank gets the same, but for the
// obstacle.
[[nodiscard]] Expected<HostLinks> choose_host_links(Bootstrap& world,
                                                    std::unique_ptr<Transport> first,
                                                    const OpenLinks& second,
                                                    const std::vector<int>& host_of, Time deadline);

}  // namespace rueda
