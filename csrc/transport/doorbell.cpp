#include "transport/doorbell.h"

#include <sys/socket.h>

#include <cerrno>

namespace rueda {

Expected<Doorbell> Doorbell::open() {
  Doorbell bell;
  bell.name_ = "rueda-bell-" + random_name();
  bell.fd_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const AbstractAddress address(bell.name_);
  if (!bell.fd_ || ::bind(bell.fd(), address.get(), address.length) != 0) {
    return system_error("cannot make a doorbell", errno);
  }
  return bell;
}

void Doorbell::ring(const AbstractAddress& other) const {
  const char byte = 0;
  [[maybe_unused]] const auto sent =
      ::sendto(fd(), &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL, other.get(), other.length);
}

void Doorbell::silence() const {
  // Bounded, since any process of the host can ring: it shall not keep this one here.
  char byte = 0;
  for (int count = 0; count < 64 && ::recv(fd(), &byte, 1, MSG_DONTWAIT) >= 0; ++count) {
  }
}

}  // namespace rueda
