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
  std::string address;  // with the port that the system chose where 0 was asked for
};

// ErrorCode::transport in both. "tcp::port" listens everywhere, over IPv6 and IPv4 alike.
[[nodiscard]] Expected<Listener> listen_on(const std::string& address);
// The connection may still be under way: the descriptor is writable once it is decided, see
// finish_connecting(). A Unix socket of another user is not connected to, unless it is `user`.
// `source`: over TCP, from where.
struct Source {
  std::string host;  // a numeric address of this host; empty leaves it to the system
  int port = 0;      // if it is free; 0 leaves it to the system
};
[[nodiscard]] Expected<UniqueFd> start_connecting(const std::string& address,
                                                  const Source& source = {},
                                                  std::optional<uid_t> user = {});
// The same in more detail.
struct Attempt {
  UniqueFd fd;
  Status status;
  bool lacks_resources = false;  // it is this process or its system that could not
  bool is_refused = false;       // nobody listens there
};
[[nodiscard]] Attempt attempt_to_connect(const std::string& address, const Source& source = {},
                                         std::optional<uid_t> user = {});
// Whether an error says that no more descriptors, or no memory, can be had at the moment.
[[nodiscard]] bool lacks_resources(int error);
// How long a TCP connection may be without an answer before the system gives it up: half a minute,
// unless this says otherwise.
constexpr Duration usual_patience = std::chrono::seconds(30);
void set_patience(int fd, Duration patience);
// The local port of a TCP socket; 0 where it has none.
[[nodiscard]] int local_port(int fd);
// Whether a process of this user listens at this Unix socket, on this kernel and in this network
// namespace. Says so at once.
[[nodiscard]] bool is_served(const std::string& unix_address);
// Where a name has several addresses, over IPv6 and IPv4 say, each of them, in the order in which
// the system prefers them; or else the address itself.
[[nodiscard]] std::vector<std::string> addresses_of(const std::string& address);
// Of those, each that an interface of this host has but for loopbacks, once.
[[nodiscard]] std::vector<std::string> own_addresses_of(const std::string& address);
// "tcp:host:port"
[[nodiscard]] std::string join_tcp(const std::string& host, int port);
// The address of the host at the other end of a TCP connection; empty on a Unix socket.
[[nodiscard]] std::string peer_host(int fd);
// What became of it.
Status finish_connecting(int fd);

struct Accepted {
  UniqueFd fd;                     // empty where no connection waits
  bool lacks_descriptors = false;  // one waits, but this process or the system can open no more
};
// A connection that waits at `listener`. Those of other users are closed at once, with a warning,
// a bounded number per call: a listener that is still readable afterwards is to be asked again.
[[nodiscard]] Accepted accept_from(int listener);

// Whether the process at the other end of an AF_UNIX stream runs under this one's effective user
// id, or as `user`; nobody else, root included, is let in. On a connecting socket this is the
// process that listens, as it was when it began to. ErrorCode::transport. Always true of TCP, which
// does not tell.
[[nodiscard]] Status check_peer_user(int fd, std::optional<uid_t> user = {});

// The address of AF_UNIX's abstract namespace for `name`, and its length.
struct AbstractAddress {
  explicit AbstractAddress(std::string_view name);
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_un address{};
  socklen_t length = 0;
};

// The address under which ranks of other hosts can reach this one. `interfaces` names a network
// interface or is an address or host name, the first where it lists several; empty takes what this
// host's name resolves to, or the first interface's address where that is a loopback or none of
// this host's, as behind a translation of addresses.
[[nodiscard]] Expected<std::string> reachable_address(const std::string& interfaces);

// The parts of Options::interface, "eth0,eth1": at least one, which may be empty.
[[nodiscard]] std::vector<std::string> interfaces_of(const std::string& option);

// 32 random hexadecimal digits.
[[nodiscard]] std::string random_name();

// "what: strerror(error)"
[[nodiscard]] Status system_error(std::string_view what, int error);
// The same of a connection: ErrorReason::refused where nobody listens, none where the connection
// was reset or it is this side that cannot, and otherwise ErrorReason::unreachable.
[[nodiscard]] Status connection_error(std::string_view what, int error);

}  // namespace rueda
