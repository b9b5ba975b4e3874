#include "transport/descriptors.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <iterator>
#include <set>
#include <thread>
#include <utility>

#include "core/interruption.h"
#include "core/sha256.h"
#include "core/strings.h"
#include "core/wait_fd.h"
#include "transport/socket.h"
#include "transport/strangers.h"

namespace rueda {

namespace {

// The first thing that a rank sends.
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

// Takes ownership of the received descriptors.
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
  // Too many descriptors of this user are in transit; nothing reports when they have arrived.
  if (error == ETOOMANYREFS) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    look_for_interruption();
    return true;
  }
  return false;
}

// Connections that have not yet said which rank they are. All are read at once, so that a silent
// one delays nobody.
class PendingCalls {
 public:
  PendingCalls(const std::string& world, int size)
      : world_(claim_of(world, 0).world), size_(size) {}

  // If there are too many, the oldest is dropped.
  void add(UniqueFd socket) {
    if (calls_.size() >= max_strangers + static_cast<std::size_t>(size_)) drop_oldest();
    calls_.push_back({std::move(socket), {}, 0, Clock::now() + handshake_timeout});
  }
  void drop_oldest() {
    if (!calls_.empty()) calls_.pop_front();
  }

  // Sleeps until a connection, or the listener unless it is -1, is readable, at most until
  // `deadline`.
  void sleep(int listener, Time deadline) const {
    std::vector<pollfd> entries;
    if (listener >= 0) entries.push_back({listener, POLLIN, 0});
    for (const Call& call : calls_) {
      entries.push_back({call.socket.get(), POLLIN, 0});
      deadline = std::min(deadline, call.deadline);
    }
    if (is_interruptible()) deadline = std::min(deadline, Clock::now() + pause_between_looks());
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::clamp<long long>(left.count(), 0, max_sleep.count())));
    look_for_interruption();
  }

  // Takes out those that have said who they are; closes strangers.
  std::vector<std::pair<int, UniqueFd>> hear() {
    std::vector<std::pair<int, UniqueFd>> ranks;
    const Time now = Clock::now();
    for (auto call = calls_.begin(); call != calls_.end();) {
      const State state = now > call->deadline ? State::over : hear(*call);
      if (state == State::claims) ranks.emplace_back(call->claim.rank, std::move(call->socket));
      call = state == State::waits ? std::next(call) : calls_.erase(call);
    }
    return ranks;
  }

 private:
  enum class State : std::uint8_t { waits, claims, over };
  struct Call {
    UniqueFd socket;
    Claim claim;
    std::size_t heard = 0;  // bytes of the claim
    Time deadline;
  };

  // Never reads beyond the claim: descriptors may follow, which must not be lost.
  [[nodiscard]] State hear(Call& call) const {
    while (call.heard < sizeof call.claim) {
      auto* place = reinterpret_cast<std::byte*>(&call.claim) + call.heard;
      const ssize_t got = ::recv(call.socket.get(), place, sizeof call.claim - call.heard, 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::waits;
      if (got <= 0) return State::over;
      call.heard += static_cast<std::size_t>(got);
    }
    const bool is_ours = equal_in_constant_time(std::as_bytes(std::span(call.claim.world)),
                                                std::as_bytes(std::span(world_)));
    const int rank = call.claim.rank;
    return is_ours && rank > 0 && rank < size_ ? State::claims : State::over;
  }

  static constexpr std::chrono::milliseconds max_sleep{60'000};

  const decltype(Claim::world) world_;
  const int size_;
  std::deque<Call> calls_;
};

Status did_not_come(const std::set<int>& missing, const std::string& what) {
  return Status(ErrorCode::initialization,
                str(describe_ranks({missing.begin(), missing.end()}),
                    " did not connect to receive ", what, " before the deadline"));
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
      return system_error("cannot pass shared memory on", errno);
    }
  }
  return {};
}

Expected<std::vector<UniqueFd>> receive_descriptors(int socket, std::size_t count,
                                                    const std::string& what, Time deadline) {
  if (!becomes_readable(socket, deadline)) {
    return Status(ErrorCode::initialization, str(what, " was not received before the deadline"));
  }
  Envelope envelope(descriptors_per_message);
  const ssize_t got = ::recvmsg(socket, &envelope.header, MSG_CMSG_CLOEXEC);
  if (got < 0) return system_error(str("cannot receive ", what), errno);
  auto fds = take_descriptors(envelope.header);
  if (got == 1 && fds.size() == count) return fds;
  if ((envelope.header.msg_flags & MSG_CTRUNC) != 0) {
    return system_error(str("cannot receive ", what), EMFILE);
  }
  return Status(ErrorCode::transport, str(what, " was not received: the other rank gave up"));
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
  PendingCalls pending(world, size);
  while (!missing.empty()) {
    if (Clock::now() >= deadline) return did_not_come(missing, what);
    bool lacks_descriptors = false;
    for (int count = 0; count < max_accepted_at_once; ++count) {
      Accepted next = accept_from(listener);
      lacks_descriptors = next.lacks_descriptors;
      if (!next.fd) break;
      pending.add(std::move(next.fd));
    }
    for (auto& [rank, socket] : pending.hear()) {
      if (missing.contains(rank) && answer(rank, std::move(socket))) missing.erase(rank);
    }
    if (missing.empty()) break;
    if (lacks_descriptors) {
      pending.drop_oldest();
      pending.sleep(-1, std::min<Time>(deadline, Clock::now() + accept_back_off));
    } else {
      pending.sleep(listener, deadline);
    }
  }
  return {};
}

}  // namespace rueda
