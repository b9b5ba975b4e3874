#include "core/strings.h"
#include "membership/world.h"

namespace rueda {

std::string Topology::describe(int peer) const {
  const auto index = static_cast<std::size_t>(peer);
  return str("rank ", peer, " (", host_names[index], ", pid ", process_ids[index], ")");
}

}  // namespace rueda
