// The bulk transport between ranks of one host: rings in the memory that they share. A rank that
// sleeps is woken by its wake word, as by everything else on its host.
#pragma once

#include <cstddef>
#include <memory>

#include "core/status.h"
#include "onehost/host_memory.h"
#include "transport/ring_transport.h"

namespace rueda {

// Of the ranks of `host` in a world of `world_size`, by their ranks there; once for each of them.
// All have made it before the first sends. A ring takes memory with its first message. Fails where
// the host's memory has no room.
[[nodiscard]] Expected<std::unique_ptr<Transport>> make_memory_transport(
    const std::shared_ptr<HostMemory>& host, int world_size,
    std::size_t ring_bytes = default_ring_bytes);

}  // namespace rueda
