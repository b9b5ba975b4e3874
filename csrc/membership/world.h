// The world as one rank sees it once all ranks have been found: where each of them is, and the
// lanes to them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/options.h"
#include "core/status.h"
#include "membership/host_links.h"
#include "onehost/host_group.h"
#include "plan/link_costs.h"
#include "transport/bootstrap.h"
#include "transport/control_lane.h"
#include "transport/transport.h"

namespace rueda {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among this host's ranks
  int local_size = 1;
  int cross_rank = 0;  // index of this host among the hosts that have this local rank
  int cross_size = 1;
  bool homogeneous = true;              // all hosts have the same number of ranks
  std::vector<std::string> host_names;  // of each rank
  std::vector<int> host_of;             // of each rank: a host index
  std::vector<int> process_ids;         // of each rank

  // "rank 3 (host-b, pid 4711)". `later`: its rank in a later world.
  [[nodiscard]] std::string describe(int peer) const { return describe(peer, peer); }
  [[nodiscard]] std::string describe(int peer, int later) const;
};

// Where the ranks of a world are and what connects them. Immutable while the world exists, so any
// thread may read it.
struct WorldLayout {
  Topology topology;
  HostGroup host;
  LinkCosts link_costs;                // between hosts; same on all ranks
  std::vector<TriedLink> links_tried;  // between hosts; the one in use comes first

  // The id under which this process sees that of `peer`; -1 if it does not, if `peer` is on another
  // host, or if it is this process. If the ranks of the host share no memory, it is the id that
  // `peer` sees, which means another process if `peer` is in a PID namespace of its own.
  [[nodiscard]] int process_of(int peer) const;
  // Whether collectives of a set with these parts use each host's memory where they can.
  [[nodiscard]] bool spans_hosts(const HostParts& parts) const {
    return host.knows_hosts() && parts.leaders.size() > 1;
  }
};

struct World : WorldLayout {
  std::unique_ptr<ControlLane> control;
  std::unique_ptr<Transport> transport;
};

// Creates MPI's bulk transport; empty, with the reason in `unavailable`, if MPI cannot carry bulk
// data.
struct MpiCapability {
  std::function<Expected<std::unique_ptr<Transport>>()> make_transport;
  Status unavailable;
};

// A rank's links in a world of several hosts: shared memory, if any, to the ranks on its host, and
// `between` to all others.
[[nodiscard]] Expected<std::unique_ptr<Transport>> join_host(const HostGroup& host,
                                                             std::unique_ptr<Transport> between);

// Costs measured by the ranks of an earlier world: the same on all ranks of a host, and of the
// world.
struct KnownCosts {
  HostCosts host;
  std::vector<TriedLink> links;
};

// How long the network between hosts may be silent before the ranks behind it count as lost: two
// heartbeats, since during the first one it is the heartbeat that decides.
[[nodiscard]] Duration network_timeout(const Options& options);

// Exchanges topology and options through `bootstrap`, chooses the links to the other ranks and
// opens the lanes. Fails on every rank with ErrorCode::initialization if options that must agree
// differ (naming the option, the ranks and the values) or no transport serves all ranks. Does not
// repeat measurements that are `known` on all ranks.
[[nodiscard]] Expected<World> form_world(Bootstrap& bootstrap, const Options& options,
                                         const MpiCapability& mpi,
                                         const std::optional<KnownCosts>& known = std::nullopt);

}  // namespace rueda
