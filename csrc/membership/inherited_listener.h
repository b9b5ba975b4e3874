// The listening socket that is handed to rank 0, which serves the rendezvous there.
//
// `rueda run` opens it before it tells any rank the address, and passes the descriptor on: nobody
// else can take the address in between, and no rank comes before it is served.
// RUEDA_RENDEZVOUS_LISTENER is the descriptor's number.
#pragma once

#include <optional>
#include <string>

#include "transport/socket.h"

namespace rueda {

// A copy of `descriptor`, which stays open for the next world but is not passed on to programs.
// Nothing where it is no socket that listens at `address` (of TCP, at its port), as when a program
// between the launcher and this process has closed it and another file has its number.
[[nodiscard]] std::optional<Listener> inherited_listener(int descriptor,
                                                         const std::string& address);

}  // namespace rueda
