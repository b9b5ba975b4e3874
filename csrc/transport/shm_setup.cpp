// How the ranks of one host come to share a segment: rank 0 makes it and hands its descriptor on.
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "transport/descriptors.h"
#include "transport/shm.h"
#include "transport/socket.h"

namespace rueda {

namespace {

constexpr auto what_is_shared = "the shared memory";

// What a rank prepares before the ranks meet.
struct Preparation {
  Doorbell bell;
  std::shared_ptr<ShmSegment> segment;  // on rank 0, as the listener
  std::optional<Listener> listener;
};

Expected<Preparation> prepare(int rank, int size, std::size_t ring_bytes) {
  auto bell = Doorbell::open();
  if (!bell.ok()) return bell.status();
  Preparation prepared{std::move(bell).value(), nullptr, std::nullopt};
  if (rank == 0) {
    auto segment = ShmSegment::create(size, ring_bytes);
    if (!segment.ok()) return segment.status();
    auto listener = listen_on("unix:@rueda-memory-" + random_name());
    if (!listener.ok()) return listener.status();
    prepared.segment = std::move(segment).value();
    prepared.listener = std::move(listener).value();
  }
  return prepared;
}

// What a rank tells of itself: the name of its bell, and rank 0 where the segment is to be had,
// with a word that only ranks of this world know.
std::string encode(const Preparation& prepared) {
  if (!prepared.listener) return prepared.bell.name();
  return str(prepared.bell.name(), " ", prepared.listener->address, " ", random_name());
}

Expected<std::unique_ptr<Transport>> finish_setup(int rank, const std::vector<std::string>& told,
                                                  Preparation prepared, std::size_t ring_bytes,
                                                  Time deadline) {
  const auto size = static_cast<int>(told.size());
  std::istringstream first(told.front());
  std::string bell;
  std::string address;
  std::string world;
  first >> bell >> address >> world;
  std::vector<std::string> bells = told;
  bells.front() = bell;
  if (prepared.segment) {
    const int fd = prepared.segment->fd();
    const Status handed =
        answer_calls(prepared.listener->fd.get(), world, size, what_is_shared, deadline,
                     [&](int, const UniqueFd& socket) {
                       return send_descriptors(socket.get(), std::span(&fd, 1), deadline).ok();
                     });
    if (!handed.ok()) return handed;
  } else {
    const auto socket = call_rank_zero(address, world, rank);
    if (!socket) return socket.status();
    auto fds = receive_descriptors(socket.value().get(), 1, what_is_shared, deadline);
    if (!fds) return fds.status();
    auto segment = ShmSegment::open(std::move(fds->front()), size, ring_bytes);
    if (!segment) return segment.status();
    prepared.segment = std::move(segment).value();
  }
  return make_shm_transport(std::move(prepared.segment), rank, std::move(prepared.bell), bells);
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
  auto prepared = prepare(bootstrap.rank(), bootstrap.size(), ring_bytes);
  const auto told = bootstrap.allgather(
      "shm", prepared.ok() ? Expected<std::string>(encode(*prepared)) : prepared.status(),
      deadline);
  if (!prepared.ok()) return failed.because(prepared.status());
  if (!told.ok()) return failed.because(told.status());
  auto transport = finish_setup(bootstrap.rank(), told.value(), std::move(prepared).value(),
                                ring_bytes, deadline);
  if (!transport) return failed.because(transport.status());
  return transport;
}

}  // namespace rueda
