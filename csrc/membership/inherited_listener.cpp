#include "membership/inherited_listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstddef>

namespace rueda {

namespace {

bool is_listening(int fd) {
  int answer = 0;
  socklen_t length = sizeof answer;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &answer, &length) == 0 && answer != 0;
}

// Whether `address` is the socket's: by its name in the abstract namespace, or by its port.
bool is_at(int fd, const std::string& address) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return false;
  if (bound.ss_family == AF_UNIX) {
    const char* const path = reinterpret_cast<const sockaddr_un&>(bound).sun_path;
    const std::size_t size = length - offsetof(sockaddr_un, sun_path);
    return size > 1 && path[0] == '\0' && address == "unix:@" + std::string(path + 1, size - 1);
  }
  int port = 0;
  if (bound.ss_family == AF_INET) {
    port = ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  } else if (bound.ss_family == AF_INET6) {
    port = ntohs(reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
  }
  return port != 0 && address.starts_with("tcp:") && address.ends_with(":" + std::to_string(port));
}

}  // namespace

std::optional<Listener> inherited_listener(int descriptor, const std::string& address) {
  if (descriptor < 0 || !is_listening(descriptor) || !is_at(descriptor, address)) {
    return std::nullopt;
  }
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
  UniqueFd copy(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  if (!copy) return std::nullopt;
  return Listener{std::move(copy), address};
}

}  // namespace rueda
