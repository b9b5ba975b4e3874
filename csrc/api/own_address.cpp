#include "api/bindings.h"
#include "transport/socket.h"

namespace rueda {

std::string own_address(const std::string& interface) {
  auto address = reachable_address(interface);
  address.status().throw_if_error();
  return *std::move(address);
}

}  // namespace rueda
