// The listening socket that is handed to rank 0, which serves the rendezvous there.
//
// Whoever makes the address opens it before any rank is told: nobody else can take the address in
// between, and no rank comes before it is served. The descriptor's number is handed on
// (rueda.rendezvous), or in RUEDA_RENDEZVOUS_LISTENER (torch.distributed's backend).
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
