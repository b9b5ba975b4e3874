// Where the ranks of a world listen for connections of one kind, and how each reaches the others.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"
#include "transport/connections.h"

namespace rueda {

// A kind of connection.
struct EndpointNames {
  std::string name;           // for messages: "control lane"
  std::string key;            // for the exchange, see Bootstrap::allgather()
  std::string_view protocol;  // 8 characters
  Duration network_timeout = default_network_timeout;
};

// Collective over all ranks of `bootstrap`. Each listens on a Unix socket for the ranks of its host
// and, if `host_of` names several hosts, on TCP at each of its interfaces (`interface` is
// Options::interface) for the others; all learn all addresses. ErrorCode::initialization or
// transport if one of them cannot, or if the ranks do not meet by the deadline.
[[nodiscard]] Expected<Connections::Settings> exchange_endpoints(Bootstrap& bootstrap,
                                                                 const EndpointNames& names,
                                                                 std::span<const int> host_of,
                                                                 const std::string& interface,
                                                                 Time deadline);

}  // namespace rueda
