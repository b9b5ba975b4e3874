// Two ends of a connection within this process.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

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
  Bytes bytes(65536);
  const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return bytes;
}

}  // namespace rueda::fuzz
