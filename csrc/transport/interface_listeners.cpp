#include "transport/interface_listeners.h"

#include <iterator>
#include <sstream>
#include <utility>

namespace rueda {

Expected<InterfaceListeners> listen_on_interfaces(const std::string& interfaces) {
  InterfaceListeners own;
  for (const std::string& part : interfaces_of(interfaces)) {
    const auto host = reachable_address(part);
    if (!host) return host.status();
    auto listener = listen_on(join_tcp(host.value(), 0));
    if (!listener) return listener.status();
    own.hosts.push_back(host.value());
    own.listeners.push_back(std::move(listener).value());
  }
  return own;
}

std::vector<std::string> words_of(const std::string& announced) {
  std::istringstream words(announced);
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace rueda
