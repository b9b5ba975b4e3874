// The bulk transport between ranks of one host: rings in shared memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"
#include "transport/doorbell.h"
#include "transport/shm_segment.h"
#include "transport/transport.h"

namespace rueda {

// Holds one piece of the ring algorithm (Options::ring_chunk by default), so that sender and
// receiver overlap, and both of a rank's busy rings still fit into the cache of a core, so that
// bytes go from cache to cache.
inline constexpr std::size_t default_ring_bytes = 256 << 10;

// Whether this process may make and share memory; the reason where it may not.
[[nodiscard]] Status can_use_shm();

// Collective; all ranks must be on one host (kernel and network namespace). Exchanges names through
// `bootstrap` (keys shm/..., one barrier) and hands the memory on over a socket.
// ErrorCode::initialization.
[[nodiscard]] Expected<std::unique_ptr<Transport>> make_shm_transport(
    Bootstrap& bootstrap, Time deadline, std::size_t ring_bytes = default_ring_bytes);

// From parts that were exchanged already; `bells` holds the names of all ranks' doorbells. Each
// rank has its own `bell`; `segment` may be one object for ranks that are threads.
[[nodiscard]] std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<ShmSegment> segment,
                                                            int rank, Doorbell bell,
                                                            const std::vector<std::string>& bells);

}  // namespace rueda
