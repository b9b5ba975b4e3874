// The bulk transport between ranks of one host: rings in shared memory. A sleeping rank is woken
// through its wake word, as by everything else on its host.
#pragma once

#include <cstddef>
#include <memory>

#include "core/status.h"
#include "onehost/host_memory.h"
#include "transport/ring_transport.h"

namespace rueda {

// For the ranks of `host` in a world of `world_size`, addressed by world rank; call once per rank.
// All must have made it before the first sends. A ring allocates its memory with its first message.
// Fails if the host's memory has no room.
[[nodiscard]] Expected<std::unique_ptr<Transport>> make_memory_transport(
    const std::shared_ptr<HostMemory>& host, int world_size,
    std::size_t ring_bytes = default_ring_bytes);

}  // namespace rueda
