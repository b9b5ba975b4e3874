// Two ends of a connection within this process.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <span>

#include "core/unique_fd.h"
#include "fuzz/target.h"

namespace rueda::fuzz {

struct SocketPair {
  SocketPair() {
    std::array<int, 2> fds{};
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
    near.reset(fds[0]);
    far.reset(fds[1]);
  }
  UniqueFd near;
  UniqueFd far;
};

// What does not fit is dropped.
inline void say(const UniqueFd& fd, std::span<const std::byte> bytes) {
  [[maybe_unused]] const auto sent = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}
// What is there by now.
inline Bytes hear(const UniqueFd& fd) {
  static std::array<std::byte, 65536> bytes;  // sanitizers take long to hand so much out anew
  const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
  return {bytes.begin(), bytes.begin() + std::max<ssize_t>(got, 0)};
}

}  // namespace rueda::fuzz
