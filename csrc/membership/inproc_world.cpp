#include "membership/inproc_world.h"

#include <unistd.h>

#include "membership/host.h"

namespace rueda {

World inproc_world(InprocHub& hub, int rank) {
  const auto count = static_cast<std::size_t>(hub.size());
  Topology topology;
  topology.rank = topology.local_rank = rank;
  topology.size = topology.local_size = hub.size();
  topology.host_names.assign(count, host_name());
  topology.host_of.assign(count, 0);
  topology.process_ids.assign(count, static_cast<int>(::getpid()));
  return {{std::move(topology), {}, {}, {}}, hub.make_control_lane(rank), hub.make_transport(rank)};
}

World solo_world() {
  InprocHub hub(1);
  return inproc_world(hub, 0);
}

}  // namespace rueda
