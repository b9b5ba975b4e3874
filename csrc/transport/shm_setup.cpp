// How the ranks of one host come to share a segment: rank 0 makes it and hands its descriptor on.
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "core/strings.h"
#include "core/wait_fd.h"
#include "transport/shm.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr auto stranger_patience = std::chrono::seconds(5);

// What a rank says to be given the descriptor.
struct Claim {
  std::array<char, 32> world{};
  std::int32_t rank = -1;
};

// A message of one byte with a descriptor.
class DescriptorMessage {
 public:
  DescriptorMessage() {
    header_.msg_iov = &piece_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }
  Status send(int socket, int fd) {
    cmsghdr* entry = CMSG_FIRSTHDR(&header_);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(entry), &fd, sizeof fd);
    if (::sendmsg(socket, &header_, MSG_NOSIGNAL) == 1) return {};
    return system_error("cannot hand shared memory on", errno);
  }
  Expected<UniqueFd> receive(int socket) {
    if (::recvmsg(socket, &header_, MSG_CMSG_CLOEXEC) != 1) {
      return system_error("cannot be handed shared memory", errno);
    }
    const cmsghdr* entry = CMSG_FIRSTHDR(&header_);
    if (entry == nullptr || entry->cmsg_type != SCM_RIGHTS) {
      return Status(ErrorCode::transport, "was handed no shared memory");
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(entry), sizeof fd);
    return UniqueFd(fd);
  }

 private:
  char byte_ = 0;
  iovec piece_{&byte_, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr header_{};
};

Claim claim_of(const std::string& world, int rank) {
  Claim claim;
  std::copy_n(world.begin(), std::min(world.size(), claim.world.size()), claim.world.begin());
  claim.rank = rank;
  return claim;
}

// The rank that has claimed the descriptor over this connection and got it; -1 where it was none of
// ours.
int serve_one(int socket, const std::string& world, const ShmSegment& segment, Time deadline) {
  Claim claim;
  const Time patience = std::min<Time>(deadline, Clock::now() + stranger_patience);
  if (!wait_readable(socket, patience)) return -1;
  if (::recv(socket, &claim, sizeof claim, 0) != static_cast<ssize_t>(sizeof claim)) return -1;
  if (claim.world != claim_of(world, 0).world) return -1;
  return DescriptorMessage().send(socket, segment.fd()) ? claim.rank : -1;
}

Status hand_on(int listener, const std::string& world, const ShmSegment& segment, Time deadline) {
  std::set<int> missing;
  for (int rank = 1; rank < segment.size(); ++rank) missing.insert(rank);
  while (!missing.empty()) {
    if (const UniqueFd socket = accept_from(listener)) {
      missing.erase(serve_one(socket.get(), world, segment, deadline));
    } else if (!wait_readable(listener, deadline) && Clock::now() >= deadline) {
      return Status(ErrorCode::initialization,
                    str(describe_ranks({missing.begin(), missing.end()}),
                        " did not fetch the shared memory before the deadline"));
    }
  }
  return {};
}

Expected<UniqueFd> fetch(const std::string& address, const std::string& world, int rank,
                         Time deadline) {
  auto socket = start_connecting(address);
  if (!socket) return socket.status();
  const Claim claim = claim_of(world, rank);
  if (::send(socket->get(), &claim, sizeof claim, MSG_NOSIGNAL) !=
      static_cast<ssize_t>(sizeof claim)) {
    return system_error("cannot ask for shared memory", errno);
  }
  while (!wait_readable(socket->get(), deadline)) {
    if (Clock::now() >= deadline) {
      return Status(ErrorCode::initialization,
                    "rank 0 did not hand the shared memory on before the deadline", 0);
    }
  }
  return DescriptorMessage().receive(socket->get());
}

// What a rank prepares before the barrier.
struct Preparation {
  Doorbell bell;
  std::shared_ptr<ShmSegment> segment;  // on rank 0, as the listener
  std::optional<Listener> listener;
};

Expected<Preparation> prepare(Bootstrap& bootstrap, std::size_t ring_bytes) {
  auto bell = Doorbell::open();
  if (!bell) return bell.status();
  Preparation prepared{std::move(bell).value(), nullptr, std::nullopt};
  if (bootstrap.rank() == 0) {
    auto segment = ShmSegment::create(bootstrap.size(), ring_bytes);
    if (!segment) return segment.status();
    auto listener = listen_on("unix:@rueda-memory-" + random_name());
    if (!listener) return listener.status();
    prepared.segment = std::move(segment).value();
    prepared.listener = std::move(listener).value();
    if (Status put = bootstrap.put("shm/address", prepared.listener->address); !put) return put;
    if (Status put = bootstrap.put("shm/world", random_name()); !put) return put;
  }
  // Last, since it tells the others that this rank is prepared.
  if (Status put = bootstrap.put(str("shm/bell/", bootstrap.rank()), prepared.bell.name()); !put)
    return put;
  return prepared;
}

Expected<std::unique_ptr<Transport>> finish_setup(Bootstrap& bootstrap, Preparation prepared,
                                                  std::size_t ring_bytes, Time deadline) {
  std::vector<std::string> bells;
  for (int peer = 0; peer < bootstrap.size(); ++peer) {
    auto bell = bootstrap.get(str("shm/bell/", peer));
    if (!bell) {
      return Status(ErrorCode::initialization,
                    str("rank ", peer, " could not prepare shared memory"), peer);
    }
    bells.push_back(std::move(bell).value());
  }
  const auto address = bootstrap.get("shm/address");
  const auto world = bootstrap.get("shm/world");
  if (!address) return address.status();
  if (!world) return world.status();
  if (prepared.segment) {
    const Status handed =
        hand_on(prepared.listener->fd.get(), world.value(), *prepared.segment, deadline);
    if (!handed) return handed;
  } else {
    auto fd = fetch(address.value(), world.value(), bootstrap.rank(), deadline);
    if (!fd) return fd.status();
    auto segment = ShmSegment::open(std::move(fd).value(), bootstrap.size(), ring_bytes);
    if (!segment) return segment.status();
    prepared.segment = std::move(segment).value();
  }
  return make_shm_transport(std::move(prepared.segment), bootstrap.rank(), std::move(prepared.bell),
                            bells);
}

}  // namespace

Status can_use_shm() {
  const auto segment = ShmSegment::create(1, 4096);
  if (!segment) return segment.status();
  return Doorbell::open().status();
}

Expected<std::unique_ptr<Transport>> make_shm_transport(Bootstrap& bootstrap, Time deadline,
                                                        std::size_t ring_bytes) {
  const Status failed(ErrorCode::initialization, "shared memory cannot be set up");
  auto prepared = prepare(bootstrap, ring_bytes);
  // A rank that could not prepare meets the others none the less, so that they need not wait for
  // it.
  const Status met = bootstrap.barrier(deadline);
  if (!prepared) return failed.because(prepared.status());
  if (!met) return failed.because(met);
  auto transport = finish_setup(bootstrap, std::move(prepared).value(), ring_bytes, deadline);
  if (!transport) return failed.because(transport.status());
  return transport;
}

}  // namespace rueda
