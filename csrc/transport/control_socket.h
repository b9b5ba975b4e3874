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
// connections are opened later, when needed. `host_of` gives each rank the index of its host (one
// kernel and one network namespace); `interface` is Options::interface, used if there are several
// hosts; `network_timeout`: how long a network between them may fail to answer. Only processes that
// know bootstrap.secret() and what the ranks have exchanged are let in, and on one host only
// processes of the same user. Fails with ErrorCode::initialization.
[[nodiscard]] Expected<std::unique_ptr<ControlLane>> open_control_socket(
    Bootstrap& bootstrap, std::span<const int> host_of, const std::string& interface, Time deadline,
    Duration network_timeout = default_network_timeout);

}  // namespace rueda
