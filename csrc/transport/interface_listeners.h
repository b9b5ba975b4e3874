// Where a rank listens for ranks of other hosts: at one address of each of its interfaces.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "transport/socket.h"

namespace rueda {

struct InterfaceListeners {
  std::vector<Listener> listeners;
  std::vector<std::string> hosts;  // the numeric address of each
};

// `interfaces` is Options::interface: see reachable_address(). Ports are the system's choice.
// ErrorCode::initialization if one of them is not of this host, ErrorCode::transport if this rank
// cannot listen there.
[[nodiscard]] Expected<InterfaceListeners> listen_on_interfaces(const std::string& interfaces);

// What ranks announce is addresses and other words, separated by spaces.
[[nodiscard]] std::vector<std::string> words_of(const std::string& announced);

}  // namespace rueda
