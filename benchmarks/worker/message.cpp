#include "message.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace rueda_bench {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

}  // namespace

const std::string& Message::text(const std::string& name) const {
  const auto found = values.find(name);
  if (found == values.end()) throw std::runtime_error("the driver's message lacks " + name);
  return found->second;
}

long long Message::number(const std::string& name) const {
  return std::stoll(text(name));
}

Connection::Connection(const std::string& address)
    : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) fail("socket");
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (address.size() >= sizeof(name.sun_path)) {
    ::close(fd_);
    throw std::runtime_error("the driver's address is too long: " + address);
  }
  std::memcpy(&name.sun_path[1], address.data(), address.size());  // abstract: begins with 0
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size());
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&name), length) != 0) {
    const int error = errno;
    ::close(fd_);
    errno = error;
    fail("connecting to the driver of the benchmark");
  }
  ucred driver{};
  socklen_t size = sizeof driver;
  if (::getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &driver, &size) != 0 ||
      driver.uid != ::geteuid()) {
    ::close(fd_);
    throw std::runtime_error("the driver's socket is another user's: " + address);
  }
}

Connection::~Connection() {
  ::close(fd_);
}

// A message is the lengths of its two parts, then lines "name value", then the payload.
void Connection::send(const Message& message) {
  std::string lines;
  for (const auto& [name, value] : message.values) lines.append(name + " " + value + "\n");
  const std::array<std::uint64_t, 2> lengths{lines.size(), message.payload.size()};
  write_all(lengths.data(), sizeof(lengths));
  write_all(lines.data(), lines.size());
  write_all(message.payload.data(), message.payload.size());
}

bool Connection::receive(Message& message) {
  std::array<std::uint64_t, 2> lengths{};
  if (!read_all(lengths.data(), sizeof(lengths))) return false;
  std::string lines(lengths[0], '\0');
  message.payload.resize(lengths[1]);
  if (!read_all(lines.data(), lines.size())) return false;
  if (!read_all(message.payload.data(), message.payload.size())) return false;
  message.values.clear();
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) throw std::runtime_error("malformed message: " + line);
    message.values[line.substr(0, space)] = line.substr(space + 1);
  }
  return true;
}

int Connection::receive_descriptor() {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  if (::recvmsg(fd_, &header, MSG_CMSG_CLOEXEC) != 1) fail("receiving a descriptor");
  const cmsghdr* item = CMSG_FIRSTHDR(&header);
  if (item == nullptr || item->cmsg_type != SCM_RIGHTS)
    throw std::runtime_error("the driver has not handed over the memory of the group");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(item), sizeof(fd));
  return fd;
}

bool Connection::read_all(void* into, std::size_t bytes) {
  auto* at = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t got = ::read(fd_, at, bytes);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return false;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("reading from the driver");
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

void Connection::write_all(const void* from, std::size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd_, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) fail("writing to the driver");
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

}  // namespace rueda_bench
