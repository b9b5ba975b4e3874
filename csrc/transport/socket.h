// Stream sockets by address text: "unix:@name" (in the abstract namespace, so nothing appears in a
// file system) or "tcp:host:port" ("tcp:[::1]:4711" for IPv6). All descriptors are non-blocking and
// close on exec.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/unique_fd.h"

namespace rueda {

struct Listener {
  UniqueFd fd;
  std::string address;  // with the port that the system chose if 0 was requested
};

// Both fail with ErrorCode::transport. "tcp::port" listens on all interfaces, over IPv6 and IPv4.
[[nodiscard]] Expected<Listener> listen_on(const std::string& address);
// The connection may still be in progress: the descriptor is writable once it is decided, see
// finish_connecting(). Does not connect to a Unix socket of another user, unless that is `user`.
// `source`: for TCP, the local end.
struct Source {
  std::string host;  // a numeric address of this host; empty: the system chooses
  int port = 0;      // used if it is free; 0: the system chooses
};
[[nodiscard]] Expected<UniqueFd> start_connecting(const std::string& address,
                                                  const Source& source = {},
                                                  std::optional<uid_t> user = {});
// The same in more detail.
struct Attempt {
  UniqueFd fd;
  Status status;
  bool lacks_resources = false;  // this process or its system lacked resources
  bool is_refused = false;       // nobody listens there
};
[[nodiscard]] Attempt attempt_to_connect(const std::string& address, const Source& source = {},
                                         std::optional<uid_t> user = {});
// Whether an error means that no descriptors or no memory are available at the moment.
[[nodiscard]] bool lacks_resources(int error);
// How long a TCP connection may go without an answer before the system gives up: half a minute,
// unless set_network_timeout() changes it.
constexpr Duration default_network_timeout = std::chrono::seconds(30);
void set_network_timeout(int fd, Duration network_timeout);
// The local port of a TCP socket; 0 if it has none.
[[nodiscard]] int local_port(int fd);
// Whether a process of this user listens at this Unix socket, on this kernel and in this network
// namespace. Returns immediately.
[[nodiscard]] bool is_served(const std::string& unix_address);
// All addresses of a name that has several, over IPv6 and IPv4 say, in the order in which the
// system prefers them; otherwise the address itself.
[[nodiscard]] std::vector<std::string> addresses_of(const std::string& address);
// Those of them that belong to an interface of this host, each once. Loopbacks come last, and not
// alone: a name that means nothing else on its own host means another address elsewhere.
[[nodiscard]] std::vector<std::string> own_addresses_of(const std::string& address);
// "tcp:host:port"
[[nodiscard]] std::string join_tcp(const std::string& host, int port);
// The address of the host at the other end of a TCP connection; empty on a Unix socket.
[[nodiscard]] std::string peer_host(int fd);
// The result of an attempt to connect.
Status finish_connecting(int fd);

struct Accepted {
  UniqueFd fd;                     // empty if no connection waits
  bool lacks_descriptors = false;  // one waits, but this process or the system can open no more
};
// Accepts a connection that waits at `listener`. Connections of other users are closed immediately,
// with a warning, a bounded number per call: ask a listener that is still readable again.
[[nodiscard]] Accepted accept_from(int listener);

// Whether the process at the other end of an AF_UNIX stream runs under this one's effective user
// id, or as `user`; nobody else, root included, is let in. On a connecting socket this is the user
// of the listening process when it began to listen. ErrorCode::transport. Always ok for TCP, which
// cannot tell.
[[nodiscard]] Status check_peer_user(int fd, std::optional<uid_t> user = {});

// The address for `name` in AF_UNIX's abstract namespace, and its length.
struct AbstractAddress {
  explicit AbstractAddress(std::string_view name);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t length = 0;
};

// The address at which ranks on other hosts can reach this one. `interfaces` is a network
// interface, an address or a host name; of a list, the first counts. If empty: what this host's
// name resolves to, or the first interface's address if that is a loopback or not an address of
// this host, as behind NAT.
[[nodiscard]] Expected<std::string> reachable_address(const std::string& interfaces);

// The parts of Options::interface, "eth0,eth1": at least one, which may be empty.
[[nodiscard]] std::vector<std::string> interfaces_of(const std::string& option);

// 32 random hexadecimal digits.
[[nodiscard]] std::string random_name();

// "what: strerror(error)"
[[nodiscard]] Status system_error(std::string_view what, int error);
// The same for a connection: ErrorReason::refused if nobody listens, no reason if the connection
// was reset or the fault is on this side, otherwise ErrorReason::unreachable.
[[nodiscard]] Status connection_error(std::string_view what, int error);

}  // namespace rueda
