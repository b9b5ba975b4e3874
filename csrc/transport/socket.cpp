#include "transport/socket.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "core/limited_log.h"
#include "core/sha256.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr int stream_flags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int max_rejected_at_once = 64;
constexpr std::string_view unix_prefix = "unix:@";
constexpr std::string_view tcp_prefix = "tcp:";

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Expected<AddressList> resolve(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                   port.empty() ? nullptr : port.c_str(), &hints, &found);
  AddressList list(found, &::freeaddrinfo);
  if (result == 0 && found != nullptr) return list;
  return Status(ErrorCode::transport,
                str("'", host, "' does not resolve: ", ::gai_strerror(result)));
}

std::string numeric_host(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(address, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  return host.data();
}

struct HostAndPort {
  std::string host;
  std::string port;
};

Expected<HostAndPort> split_tcp(const std::string& address) {
  const std::string_view rest = std::string_view(address).substr(tcp_prefix.size());
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == rest.size()) {
    return Status(ErrorCode::transport, str("'", address, "' is not of the form tcp:host:port"));
  }
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return HostAndPort{std::string(host), std::string(rest.substr(colon + 1))};
}

Status not_an_address(const std::string& address) {
  return Status(ErrorCode::transport,
                str("'", address, "' is not an address: give unix:@name or tcp:host:port"));
}

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

// Small messages are sent immediately, and a host that vanished silently is noticed within half a
// minute.
void prepare_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_network_timeout(fd, default_network_timeout);
}

Expected<Listener> listen_unix(const std::string& address) {
  const AbstractAddress name(address.substr(unix_prefix.size()));
  UniqueFd fd(::socket(AF_UNIX, stream_flags, 0));
  if (!fd || ::bind(fd.get(), name.get(), name.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    return system_error("cannot listen on " + address, errno);
  }
  return Listener{std::move(fd), address};
}

// Over IPv6 and IPv4 if the host has both.
UniqueFd listen_everywhere(const std::string& port) {
  for (const std::string host : {"::", "0.0.0.0"}) {
    const auto list = resolve(host, port, AI_PASSIVE | AI_NUMERICHOST);
    if (!list) continue;
    const addrinfo& any = *list.value();
    UniqueFd fd(::socket(any.ai_family, stream_flags, 0));
    if (!fd && errno == EAFNOSUPPORT) continue;
    if (!fd) return fd;
    set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (any.ai_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(fd.get(), any.ai_addr, any.ai_addrlen) == 0) {
      return ::listen(fd.get(), SOMAXCONN) == 0 ? std::move(fd) : UniqueFd();
    }
    if (errno != EADDRNOTAVAIL) return {};
  }
  return {};
}

UniqueFd listen_at(const addrinfo& address) {
  UniqueFd fd(::socket(address.ai_family, stream_flags, 0));
  if (fd) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const bool listens = fd && ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 &&
                       ::listen(fd.get(), SOMAXCONN) == 0;
  return listens ? std::move(fd) : UniqueFd();
}

Expected<Listener> listen_tcp(const std::string& address) {
  const auto parts = split_tcp(address);
  if (!parts) return parts.status();
  const auto& [host, port] = parts.value();
  const auto list = resolve(host, port, AI_PASSIVE);
  if (!list) return list.status();
  UniqueFd fd = host.empty() ? listen_everywhere(port) : listen_at(*list.value());
  if (!fd) return system_error("cannot listen on " + address, errno);
  std::string bound = join_tcp(host, local_port(fd.get()));
  return Listener{std::move(fd), std::move(bound)};
}

Attempt failed_attempt(const std::string& address, int error) {
  return {UniqueFd(), connection_error("cannot connect to " + address, error),
          lacks_resources(error), error == ECONNREFUSED};
}

Attempt connect_unix(const std::string& address, std::optional<uid_t> user) {
  const AbstractAddress name(address.substr(unix_prefix.size()));
  // On one host, connecting is decided immediately, unless the listener's queue is full. Then it
  // waits a little, since nothing reports when that changes.
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval connect_timeout{5, 0};
  if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &connect_timeout, sizeof connect_timeout);
  if (!fd || ::connect(fd.get(), name.get(), name.length) != 0) {
    return failed_attempt(address, errno);
  }
  if (Status ours = check_peer_user(fd.get(), user); !ours.ok()) return {UniqueFd(), ours};
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  return {std::move(fd), {}};
}

// Binds to `source`; if its port is in use, only to its host.
Status bind_to(int fd, int family, const Source& source) {
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  const std::string any = family == AF_INET6 ? "::" : "0.0.0.0";
  const std::string& host = source.host.empty() ? any : source.host;
  for (const int port : {source.port, 0}) {
    const auto list = resolve(host, std::to_string(port), AI_NUMERICHOST);
    if (!list) return list.status();
    if (::bind(fd, list.value()->ai_addr, list.value()->ai_addrlen) == 0) return {};
    if (errno != EADDRINUSE && errno != EACCES) return system_error("cannot use " + host, errno);
  }
  return {};  // the system chooses
}

Attempt connect_tcp(const std::string& address, const Source& source) {
  const auto parts = split_tcp(address);
  if (!parts) return {UniqueFd(), parts.status()};
  const auto list = resolve(parts.value().host, parts.value().port, 0);
  if (!list) return {UniqueFd(), list.status()};
  const addrinfo& first = *list.value();
  UniqueFd fd(::socket(first.ai_family, stream_flags, 0));
  if (!fd) return failed_attempt(address, errno);
  prepare_tcp(fd.get());
  if (!source.host.empty() || source.port != 0) {
    if (Status bound = bind_to(fd.get(), first.ai_family, source); !bound.ok()) {
      return {UniqueFd(), bound};
    }
  }
  if (::connect(fd.get(), first.ai_addr, first.ai_addrlen) == 0 || errno == EINPROGRESS) {
    return {std::move(fd), {}};
  }
  // The previous connection between the same two ports has not ended, or ended a moment ago.
  if (errno == EADDRNOTAVAIL && source.port != 0) return connect_tcp(address, {source.host});
  return failed_attempt(address, errno);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto host = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    return host >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Whether one of this host's interfaces has this address.
bool is_own(const addrinfo& address) {
  const UniqueFd fd(::socket(address.ai_family, stream_flags, 0));
  return fd && ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

// The first address of the interface called `name`, or of any interface but the loopback if `name`
// is empty. IPv4 first.
std::string interface_address(const std::string& name) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(found, &::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      const bool wanted = name.empty()
                              ? (entry->ifa_flags & IFF_UP) != 0 && !is_loopback(entry->ifa_addr)
                              : name == entry->ifa_name;
      if (!wanted) continue;
      return numeric_host(entry->ifa_addr,
                          family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  return {};
}

}  // namespace

AbstractAddress::AbstractAddress(std::string_view name) {
  address.sun_family = AF_UNIX;
  const std::size_t count = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), count);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
}

namespace {

// `port`: a number, or the name of a service.
std::string join(const std::string& host, const std::string& port) {
  return host.find(':') == std::string::npos ? str(tcp_prefix, host, ":", port)
                                             : str(tcp_prefix, "[", host, "]:", port);
}

}  // namespace

std::string join_tcp(const std::string& host, int port) {
  return join(host, std::to_string(port));
}

Expected<Listener> listen_on(const std::string& address) {
  if (address.starts_with(unix_prefix)) return listen_unix(address);
  if (address.starts_with(tcp_prefix)) return listen_tcp(address);
  return not_an_address(address);
}

Expected<UniqueFd> start_connecting(const std::string& address, const Source& source,
                                    std::optional<uid_t> user) {
  Attempt attempt = attempt_to_connect(address, source, user);
  if (!attempt.status.ok()) return attempt.status;
  return std::move(attempt.fd);
}

Attempt attempt_to_connect(const std::string& address, const Source& source,
                           std::optional<uid_t> user) {
  if (address.starts_with(unix_prefix)) return connect_unix(address, user);
  if (address.starts_with(tcp_prefix)) return connect_tcp(address, source);
  return {UniqueFd(), not_an_address(address)};
}

bool lacks_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

std::vector<std::string> addresses_of(const std::string& address) {
  if (!address.starts_with(tcp_prefix)) return {address};
  const auto parts = split_tcp(address);
  if (!parts) return {address};
  const auto& [host, port] = parts.value();
  const auto list = resolve(host, port, 0);
  if (!list) return {address};
  std::vector<std::string> found;
  for (const addrinfo* entry = list->get(); entry != nullptr; entry = entry->ai_next) {
    const std::string numeric = numeric_host(entry->ai_addr, entry->ai_addrlen);
    if (!numeric.empty()) found.push_back(join(numeric, port));
  }
  if (found.size() < 2) return {address};
  return found;
}

std::vector<std::string> own_addresses_of(const std::string& address) {
  if (!address.starts_with(tcp_prefix)) return {};
  const auto parts = split_tcp(address);
  if (!parts) return {};
  const auto& [host, port] = parts.value();
  // Without the port: whether somebody has that is another question.
  const auto list = resolve(host, "", 0);
  std::vector<std::string> found;
  std::vector<std::string> loopbacks;
  for (const addrinfo* each = list ? list->get() : nullptr; each != nullptr; each = each->ai_next) {
    if (!is_own(*each)) continue;
    std::vector<std::string>& kind = is_loopback(each->ai_addr) ? loopbacks : found;
    std::string numeric = join(numeric_host(each->ai_addr, each->ai_addrlen), port);
    if (std::ranges::find(kind, numeric) == kind.end()) kind.push_back(std::move(numeric));
  }
  if (!found.empty()) found.insert(found.end(), loopbacks.begin(), loopbacks.end());
  return found;
}

void set_network_timeout(int fd, Duration network_timeout) {
  constexpr int questions = 4;
  constexpr std::int64_t most = 24 * 3600;
  const auto total = std::chrono::duration_cast<std::chrono::seconds>(network_timeout).count();
  const int whole = static_cast<int>(std::clamp<std::int64_t>(total, 6, most));
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, whole / 3);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, whole / 6);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, questions);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * whole);
}

int local_port(int fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  switch (bound.ss_family) {
    case AF_INET: return ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
    case AF_INET6: return ntohs(reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
    default: return 0;
  }
}

std::string peer_host(int fd) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  const auto address = reinterpret_cast<sockaddr*>(&peer);
  if (::getpeername(fd, address, &length) != 0 || peer.ss_family == AF_UNIX) return {};
  return numeric_host(address, length);
}

bool is_served(const std::string& unix_address) {
  if (!unix_address.starts_with(unix_prefix)) return false;
  const AbstractAddress name(unix_address.substr(unix_prefix.size()));
  const UniqueFd fd(::socket(AF_UNIX, stream_flags, 0));
  if (!fd) return false;
  if (::connect(fd.get(), name.get(), name.length) == 0) return check_peer_user(fd.get()).ok();
  return errno == EAGAIN;  // the listener's queue is full
}

Status finish_connecting(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  return error == 0 ? Status() : connection_error("cannot connect", error);
}

Status check_peer_user(int fd, std::optional<uid_t> user) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return system_error("cannot tell whose connection this is", errno);
  }
  if (own.ss_family != AF_UNIX) return {};
  ucred peer{};
  length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return system_error("cannot tell whose connection this is", errno);
  }
  if (peer.uid == ::geteuid() || peer.uid == user) return {};
  return Status(ErrorCode::transport, str("the process at the other end (pid ", peer.pid,
                                          ") runs as user ", peer.uid, ", not as ", ::geteuid()));
}

Accepted accept_from(int listener) {
  static LimitedLog warnings(LogLevel::warning);
  for (int rejected = 0; rejected < max_rejected_at_once;) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    const int error = errno;
    if (!fd) {
      if (error == EINTR || error == ECONNABORTED) {
        ++rejected;
        continue;
      }
      return {UniqueFd(), lacks_resources(error)};
    }
    if (Status ours = check_peer_user(fd.get()); !ours.ok()) {
      warnings.write("rejected a connection: " + ours.message());
      ++rejected;
      continue;
    }
    prepare_tcp(fd.get());  // without effect on AF_UNIX
    return {std::move(fd), false};
  }
  return {};
}

std::vector<std::string> interfaces_of(const std::string& option) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= option.size();) {
    const std::size_t end = std::min(option.find(',', begin), option.size());
    parts.push_back(option.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Expected<std::string> reachable_address(const std::string& interfaces) {
  const std::string interface = interfaces_of(interfaces).front();
  if (!interface.empty()) {
    if (const std::string address = interface_address(interface); !address.empty()) return address;
  }
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const auto list = resolve(interface.empty() ? name.data() : interface, "", 0);
  for (const addrinfo* each = list ? list->get() : nullptr; each != nullptr; each = each->ai_next) {
    if (interface.empty() && is_loopback(each->ai_addr)) continue;
    if (is_own(*each)) return numeric_host(each->ai_addr, each->ai_addrlen);
  }
  if (!interface.empty()) {
    return Status(ErrorCode::initialization,
                  str("interface (RUEDA_INTERFACE) '", interface,
                      "' is neither a network interface nor an address of this host"));
  }
  if (const std::string address = interface_address(""); !address.empty()) return address;
  return std::string("127.0.0.1");
}

std::string random_name() {
  std::array<unsigned char, 16> bytes{};
  while (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  return hexadecimal(std::as_bytes(std::span(bytes)));
}

namespace {

std::string text_of(int error) {
  std::string text = std::strerror(error);
  if (error == EBADF || error == ENOTSOCK) {
    text += ": the program here has closed a file descriptor of Rueda's, as os.closerange() does";
  }
  return text;
}

}  // namespace

Status system_error(std::string_view what, int error) {
  return Status(ErrorCode::transport, str(what, ": ", text_of(error)));
}

Status connection_error(std::string_view what, int error) {
  auto reason = ErrorReason::unreachable;
  if (error == ECONNREFUSED) reason = ErrorReason::refused;
  if (error == ECONNRESET || error == EPIPE || lacks_resources(error)) {
    reason = ErrorReason::unspecified;
  }
  return Status(ErrorCode::transport, str(what, ": ", text_of(error)), -1, {.reason = reason});
}

}  // namespace rueda
