#include "transport/descriptors.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "core/strings.h"
#include "core/wait_fd.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr auto stranger_patience = std::chrono::seconds(5);

// What a rank says first.
struct Claim {
  std::array<char, 32> world{};
  std::int32_t rank = -1;
};

Claim claim_of(const std::string& world, int rank) {
  Claim claim;
  std::copy_n(world.begin(), std::min(world.size(), claim.world.size()), claim.world.begin());
  claim.rank = rank;
  return claim;
}

// A message of one byte with room for descriptors.
struct Envelope {
  explicit Envelope(std::size_t descriptors) {
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  }

  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(descriptors_per_message * sizeof(int))> control{};
  msghdr header{};
};

// The descriptors that came, owned.
std::vector<UniqueFd> take_descriptors(msghdr& header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry) + index * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// Whether to try again after `error` once the deadline allows it.
bool may_send_later(int socket, int error, Time deadline) {
  if (Clock::now() >= deadline) return false;
  if (error == EINTR) return true;
  if (error == EAGAIN) {
    wait_writable(socket, deadline);
    return true;
  }
  // Too many descriptors of this user are on their way; nothing tells when they have arrived.
  if (error == ETOOMANYREFS) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return true;
  }
  return false;
}

// The rank that has called over this connection; -1 where it was none of ours.
int hear_claim(int socket, const std::string& world, int size, Time deadline) {
  Claim claim;
  const Time patience = std::min<Time>(deadline, Clock::now() + stranger_patience);
  if (!wait_readable(socket, patience)) return -1;
  if (::recv(socket, &claim, sizeof claim, 0) != static_cast<ssize_t>(sizeof claim)) return -1;
  const bool is_ours = claim.world == claim_of(world, 0).world;
  return is_ours && claim.rank > 0 && claim.rank < size ? claim.rank : -1;
}

}  // namespace

Status send_descriptors(int socket, std::span<const int> fds, Time deadline) {
  Envelope envelope(fds.size());
  cmsghdr* entry = CMSG_FIRSTHDR(&envelope.header);
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = SCM_RIGHTS;
  entry->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(entry), fds.data(), fds.size_bytes());
  while (::sendmsg(socket, &envelope.header, MSG_NOSIGNAL) != 1) {
    if (!may_send_later(socket, errno, deadline)) {
      return system_error("cannot hand shared memory on", errno);
    }
  }
  return {};
}

Expected<std::vector<UniqueFd>> receive_descriptors(int socket, std::size_t count,
                                                    const std::string& what, Time deadline) {
  while (!wait_readable(socket, deadline)) {
    if (Clock::now() >= deadline) {
      return Status(ErrorCode::initialization, str(what, " was not handed on before the deadline"));
    }
  }
  Envelope envelope(descriptors_per_message);
  const ssize_t got = ::recvmsg(socket, &envelope.header, MSG_CMSG_CLOEXEC);
  if (got < 0) return system_error(str("cannot be handed ", what), errno);
  auto fds = take_descriptors(envelope.header);
  if (got == 1 && fds.size() == count) return fds;
  if ((envelope.header.msg_flags & MSG_CTRUNC) != 0) {
    return system_error(str("cannot be handed ", what), EMFILE);
  }
  return Status(ErrorCode::transport, str(what, " was not handed on: the other rank gave up"));
}

Expected<UniqueFd> call_rank_zero(const std::string& address, const std::string& world, int rank) {
  auto socket = start_connecting(address);
  if (!socket) return socket.status();
  const Claim claim = claim_of(world, rank);
  if (::send(socket->get(), &claim, sizeof claim, MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof claim)) {
    return system_error("cannot call rank 0", errno);
  }
  return socket;
}

Status answer_calls(int listener, const std::string& world, int size, const std::string& what,
                    Time deadline, const std::function<bool(int rank, UniqueFd socket)>& answer) {
  std::set<int> missing;
  for (int rank = 1; rank < size; ++rank) missing.insert(rank);
  while (!missing.empty()) {
    if (UniqueFd socket = accept_from(listener)) {
      const int rank = hear_claim(socket.get(), world, size, deadline);
      if (rank > 0 && answer(rank, std::move(socket))) missing.erase(rank);
    } else if (!wait_readable(listener, deadline) && Clock::now() >= deadline) {
      return Status(ErrorCode::initialization,
                    str(describe_ranks({missing.begin(), missing.end()}), " did not come for ",
                        what, " before the deadline"));
    }
  }
  return {};
}

}  // namespace rueda
