#include "onehost/host_exchange.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/strings.h"
#include "core/wait_fd.h"
#include "transport/descriptors.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr auto what_is_shared = "the ranks' shared memory";

// Descriptors in transit count against a per-user limit. So a rank gets a few at a time, and
// acknowledges them.
constexpr char taken = 't';

Status say_taken(int socket) {
  if (::send(socket, &taken, sizeof taken, MSG_NOSIGNAL) == sizeof taken) return {};
  return system_error("cannot answer rank 0", errno);
}

Status hear_taken(int socket, int rank, Time deadline) {
  char heard = 0;
  if (!becomes_readable(socket, deadline)) {
    return Status(ErrorCode::initialization,
                  str("rank ", rank, " did not accept ", what_is_shared, " before the deadline"),
                  rank);
  }
  if (::recv(socket, &heard, sizeof heard, 0) == sizeof heard && heard == taken) return {};
  return Status(ErrorCode::transport, str("rank ", rank, " stopped accepting ", what_is_shared),
                rank);
}

// Splits the ranks into batches whose descriptors fit into one message.
class Batches {
 public:
  Batches(int size, std::size_t each)
      : size_(size), ranks_(static_cast<int>(descriptors_per_message / each)) {}
  Status for_each(const std::function<Status(int first, int last)>& body) const {
    for (int first = 0; first < size_; first += ranks_) {
      if (Status done = body(first, std::min(first + ranks_, size_)); !done.ok()) return done;
    }
    return {};
  }

 private:
  int size_;
  int ranks_;
};

// Rank 0: collects from all ranks, then sends to all.
class Hub {
 public:
  Hub(const MeetingPoint& place, int size, std::span<const int> own, Time deadline)
      : place_(place), own_(own), deadline_(deadline), peers_(static_cast<std::size_t>(size)) {}

  Status collect() {
    const auto answer = [this](int rank, UniqueFd socket) {
      auto fds = receive_descriptors(socket.get(), own_.size(), what_is_shared, deadline_);
      if (!fds) return false;
      peers_[static_cast<std::size_t>(rank)] = {std::move(socket), std::move(fds).value()};
      return true;
    };
    const int size = static_cast<int>(peers_.size());
    return answer_calls(place_.listener, place_.world, size, what_is_shared, deadline_, answer);
  }

  Status give(int rank) {
    const int socket = peers_[static_cast<std::size_t>(rank)].socket.get();
    return Batches(static_cast<int>(peers_.size()), own_.size()).for_each([&](int first, int last) {
      const std::vector<int> fds = descriptors(first, last);
      if (Status sent = send_descriptors(socket, fds, deadline_); !sent.ok()) return sent;
      return hear_taken(socket, rank, deadline_);
    });
  }

  // Another rank's descriptors, to be taken once all have been sent.
  [[nodiscard]] std::span<UniqueFd> of(int rank) {
    return peers_[static_cast<std::size_t>(rank)].fds;
  }

 private:
  struct Peer {
    UniqueFd socket;
    std::vector<UniqueFd> fds;
  };

  [[nodiscard]] std::vector<int> descriptors(int first, int last) const {
    std::vector<int> fds;
    for (int rank = first; rank < last; ++rank) {
      if (rank == 0) fds.insert(fds.end(), own_.begin(), own_.end());
      for (const UniqueFd& fd : peers_[static_cast<std::size_t>(rank)].fds) fds.push_back(fd.get());
    }
    return fds;
  }

  const MeetingPoint& place_;
  const std::span<const int> own_;
  const Time deadline_;
  std::vector<Peer> peers_;  // empty for rank 0
};

Status take_own(int rank, std::span<const int> own, const TakeDescriptors& take) {
  std::vector<UniqueFd> fds;
  for (const int fd : own) {
    fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!fds.back()) return system_error("cannot duplicate a descriptor", errno);
  }
  return take(rank, fds);
}

Status exchange_at_hub(Hub& hub, int size, std::span<const int> own, const TakeDescriptors& take) {
  if (Status collected = hub.collect(); !collected.ok()) return collected;
  for (int rank = 1; rank < size; ++rank) {
    if (Status given = hub.give(rank); !given.ok()) return given;
  }
  if (Status done = take_own(0, own, take); !done.ok()) return done;
  for (int rank = 1; rank < size; ++rank) {
    if (Status done = take(rank, hub.of(rank)); !done.ok()) return done;
  }
  return {};
}

Status exchange_with_hub(const MeetingPoint& place, int rank, int size, std::span<const int> own,
                         const TakeDescriptors& take, Time deadline) {
  const auto socket = call_rank_zero(place.address, place.world, rank);
  if (!socket) return socket.status();
  const int fd = socket.value().get();
  if (Status sent = send_descriptors(fd, own, deadline); !sent.ok()) return sent;
  return Batches(size, own.size()).for_each([&](int first, int last) {
    const auto count = static_cast<std::size_t>(last - first);
    auto fds = receive_descriptors(fd, count * own.size(), what_is_shared, deadline);
    if (!fds) return fds.status();
    const std::span<UniqueFd> all(fds.value());
    for (std::size_t index = 0; index < count; ++index) {
      const auto theirs = all.subspan(index * own.size(), own.size());
      if (Status done = take(first + static_cast<int>(index), theirs); !done.ok()) return done;
    }
    return say_taken(fd);
  });
}

}  // namespace

Status exchange_descriptors(const MeetingPoint& place, int rank, int size, std::span<const int> own,
                            const TakeDescriptors& take, Time deadline) {
  if (rank != 0) return exchange_with_hub(place, rank, size, own, take, deadline);
  Hub hub(place, size, own, deadline);
  return exchange_at_hub(hub, size, own, take);
}

}  // namespace rueda
