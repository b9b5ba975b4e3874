// The listening socket passed to rank 0, which serves the rendezvous on it.
//
// It is opened by the process that creates the address, before any rank is told: nobody else can
// take the address in between, and no rank comes before it is served. The descriptor's number is
// passed on by rueda.rendezvous, or in RUEDA_RENDEZVOUS_LISTENER (torch.distributed's backend).
#pragma once

#include <optional>
#include <string>

#include "transport/socket.h"

namespace rueda {

// A copy of `descriptor`, which stays open for the next world but is not inherited by programs.
// nullopt unless it is a socket listening at `address` (TCP: at its port): a program between the
// launcher and this process may have closed it and reused its number.
[[nodiscard]] std::optional<Listener> inherited_listener(int descriptor,
                                                         const std::string& address);

}  // namespace rueda
