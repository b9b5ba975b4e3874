// A control lane over sockets: AF_UNIX between ranks of one host, TCP between hosts.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"
#include "transport/control_lane.h"
#include "transport/socket.h"

namespace rueda {

// Collective. Listens, and exchanges addresses through `bootstrap` (keys control/..., one barrier);
// connections open later, when needed. `host_of` gives, for each rank, an index that ranks of one
// host (one kernel and one network namespace) share; `interface` is Options::interface, used where
// there are several hosts; `patience`: with a network between them that does not answer. Only those
// who know bootstrap.secret() and what the ranks have exchanged are let in, and on one host only
// processes of the same user. Fails with ErrorCode::initialization.
[[nodiscard]] Expected<std::unique_ptr<ControlLane>> open_control_socket(
    Bootstrap& bootstrap, std::span<const int> host_of, const std::string& interface, Time deadline,
    Duration patience = usual_patience);

}  // namespace rueda
