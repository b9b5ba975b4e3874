#include "onehost/peer_process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "onehost/process_state.h"

namespace rueda {

namespace {

bool exists(int process) {
  return ::kill(process, 0) == 0 || errno != ESRCH;
}

}  // namespace

UniqueFd PeerProcess::open_own() {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
}

PeerProcess::PeerProcess(int process, UniqueFd fd, UniqueFd life_line)
    : process_(process),
      fd_(std::move(fd)),
      life_line_(std::move(life_line)),
      is_visible_(exists(process)) {}

bool PeerProcess::has_ended() const {
  if (!fd_) return is_visible_ && !exists(process_);
  std::array<pollfd, 2> watched{pollfd{fd_.get(), POLLIN, 0}, pollfd{life_line_.get(), POLLIN, 0}};
  if (::poll(watched.data(), watched.size(), 0) <= 0) return false;
  if (watched[0].revents != 0) return true;
  constexpr Duration between_looks = std::chrono::microseconds(40);
  const Time now = Clock::now();
  if (now < next_look_.load()) return false;
  next_look_.store(now + between_looks);
  return has_left_memory(identifier());
}

int PeerProcess::identifier() const {
  const int seen = fd_ ? identifier_of(fd_.get()) : (is_visible_ ? process_ : -1);
  return seen == ::getpid() ? -1 : seen;
}

bool PeerProcess::kill() const {
  return fd_ && ::syscall(SYS_pidfd_send_signal, fd_.get(), SIGKILL, nullptr, 0) == 0;
}

}  // namespace rueda
