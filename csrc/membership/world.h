// The world as one rank sees it once every rank has been found: who is where, and the lanes to
// them.
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
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int cross_rank = 0;  // index of this host among the hosts that have a rank with this local rank
  int cross_size = 1;
  bool homogeneous = true;              // every host has as many ranks
  std::vector<std::string> host_names;  // of each rank
  std::vector<int> host_of;             // of each rank: an index that equal hosts share
  std::vector<int> process_ids;         // of each rank

  // "rank 3 (host-b, pid 4711)"
  [[nodiscard]] std::string describe(int peer) const;
};

// Who is where in a world and what lies between them. It stays as it is while the world is there,
// so any thread may read it.
struct WorldLayout {
  Topology topology;
  HostGroup host;
  LinkCosts link_costs;                // between hosts, the same on all ranks
  std::vector<TriedLink> links_tried;  // between hosts; that which is used comes first

  // Whether members of a set in these parts do what they can in the memory of each host.
  [[nodiscard]] bool spans_hosts(const HostParts& parts) const {
    return host.knows_hosts() && parts.leaders.size() > 1;
  }
};

struct World : WorldLayout {
  std::unique_ptr<ControlLane> control;
  std::unique_ptr<Transport> transport;
};

// Makes MPI's bulk transport; empty where MPI cannot carry bulk, with the reason in `unavailable`.
struct MpiCapability {
  std::function<Expected<std::unique_ptr<Transport>>()> make_transport;
  Status unavailable;
};

// The links of a rank in a world of several hosts: memory to the ranks of its own, where that
// shares any, and `between` to all others.
[[nodiscard]] Expected<std::unique_ptr<Transport>> join_host(const HostGroup& host,
                                                             std::unique_ptr<Transport> between);

// What exchanges cost, as the ranks of an earlier world have measured it: the same on all ranks of
// a host, and of the world.
struct KnownCosts {
  HostCosts host;
  LinkCosts links;
};

// How long a network between hosts may be without an answer before who is behind it is lost: two
// heartbeats, since within the first one it is the heartbeat that tells.
[[nodiscard]] Duration network_patience(const Options& options);

// Exchanges topology and options through `bootstrap`, chooses the links with the other ranks
// and opens the lanes. Fails on every rank with ErrorCode::initialization where options that must
// agree differ (naming the option, the ranks and the values) or where no transport serves all
// ranks. What is `known` on all ranks is not measured again.
[[nodiscard]] Expected<World> form_world(Bootstrap& bootstrap, const Options& options,
                                         const MpiCapability& mpi,
                                         const std::optional<KnownCosts>& known = std::nullopt);

}  // namespace rueda
