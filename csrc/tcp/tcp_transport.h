// The bulk transport between hosts, over TCP: no MPI is needed. What goes over the wire is told in
// chunk_header.h, how streams share it in outgoing_messages.h and stream_count.h, and who is let in
// in transport/handshake.h and stream_opening.h. Neither encrypted nor protected against changes:
// docs/security.md.
#pragma once

#include <memory>
#include <string>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"
#include "transport/transport.h"

namespace rueda {

// Collective. Listens at the address of `interface` (Options::interface), and exchanges addresses
// through `bootstrap` (keys tcp/..., one barrier); streams open later, when they are needed. Only
// those who know bootstrap.secret() and what the ranks have exchanged are let in. Fails with
// ErrorCode::initialization.
[[nodiscard]] Expected<std::unique_ptr<Transport>> open_tcp_transport(Bootstrap& bootstrap,
                                                                      const std::string& interface,
                                                                      Time deadline);

}  // namespace rueda
