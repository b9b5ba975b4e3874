// How the ranks of one host come to share a segment: rank 0 makes it and hands its descriptor on.
#include <optional>
#include <span>
#include <utility>

#include "core/strings.h"
#include "transport/descriptors.h"
#include "transport/shm.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr auto what_is_shared = "the shared memory";

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
    const int fd = prepared.segment->fd();
    const Status handed =
        answer_calls(prepared.listener->fd.get(), world.value(), bootstrap.size(), what_is_shared,
                     deadline, [&](int, const UniqueFd& socket) {
                       return send_descriptors(socket.get(), std::span(&fd, 1), deadline).ok();
                     });
    if (!handed) return handed;
  } else {
    const auto socket = call_rank_zero(address.value(), world.value(), bootstrap.rank());
    if (!socket) return socket.status();
    auto fds = receive_descriptors(socket.value().get(), 1, what_is_shared, deadline);
    if (!fds) return fds.status();
    auto segment = ShmSegment::open(std::move(fds->front()), bootstrap.size(), ring_bytes);
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
