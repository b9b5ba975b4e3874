// The bulk transport between hosts, over TCP; does not need MPI. For the wire format see
// chunk_header.h, for how streams share the data outgoing_messages.h and stream_count.h, and for
// who is admitted transport/handshake.h and stream_opening.h. Neither encrypted nor protected
// against tampering: docs/security.md.
#pragma once

#include <memory>
#include <string>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"
#include "transport/transport.h"

namespace rueda {

// Collective. Listens on the address of `interface` (Options::interface) and exchanges addresses
// through `bootstrap` (keys tcp/..., one barrier). Streams are opened later, when needed. Admits
// only processes that know bootstrap.secret() and what the ranks have exchanged. Fails with
// ErrorCode::initialization.
[[nodiscard]] Expected<std::unique_ptr<Transport>> open_tcp_transport(Bootstrap& bootstrap,
                                                                      const std::string& interface,
                                                                      Time deadline);

}  // namespace rueda
