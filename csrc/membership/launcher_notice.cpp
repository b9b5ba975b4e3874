#include "membership/launcher_notice.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include "core/strings.h"
#include "core/unique_fd.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr int attempts = 10;
constexpr int pause_ms = 100;

// Whoever takes a name whose launcher is gone is to learn nothing. The launcher may be root's.
bool listens_for_this_user(int fd) {
  return check_peer_user(fd).ok() || check_peer_user(fd, uid_t{0}).ok();
}

// Empty if nobody listens.
UniqueFd connect_to(const std::string& name) {
  if (!name.starts_with('@') || name.size() > sizeof(sockaddr_un::sun_path)) return {};
  const AbstractAddress address(name.substr(1));
  for (int i = 0; i < attempts; ++i) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return {};
    if (::connect(socket.get(), address.get(), address.length) == 0) {
      return listens_for_this_user(socket.get()) ? std::move(socket) : UniqueFd();
    }
    if (errno != EAGAIN && errno != EINTR) return {};
    ::poll(nullptr, 0, pause_ms);  // very many ranks at once: its queue is full
  }
  return {};
}

void tell(const Environment& environment, const std::string& text) {
  const auto name = environment("RUEDA_LAUNCHER");
  if (!name || name->empty()) return;
  const UniqueFd socket = connect_to(*name);
  if (!socket) return;
  // It always fits, and waits there until the launcher reads it.
  [[maybe_unused]] const auto sent = ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

}  // namespace

void notify_launcher(const Environment& environment, const Launch& launch, Arrival arrival) {
  if (launch.is_within_rank) return;
  tell(environment,
       str(arrival == Arrival::met ? "met " : "waiting ", launch.rank, " ", launch.size));
}

void report_silent(const Environment& environment, const std::string& host, int process_id) {
  tell(environment, str("silent ", host, " ", process_id));
}

}  // namespace rueda
