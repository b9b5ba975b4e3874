#include "membership/inherited_listener.h"

#include <fcntl.h>
#include <netinet/in.h>

namespace rueda {

namespace {

bool is_listening(int fd) {
  int answer = 0;
  socklen_t length = sizeof answer;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &answer, &length) == 0 && answer != 0;
}

// 0 where it is no TCP socket.
int port_of(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  if (bound.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  }
  if (bound.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
  }
  return 0;
}

}  // namespace

std::optional<Listener> inherited_listener(int descriptor, const std::string& address) {
  if (descriptor < 0 || !is_listening(descriptor)) return std::nullopt;
  const int port = port_of(descriptor);
  if (port == 0 || !address.ends_with(":" + std::to_string(port))) return std::nullopt;
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  UniqueFd copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  if (!copy) return std::nullopt;
  return Listener{std::move(copy), address};
}

}  // namespace rueda
