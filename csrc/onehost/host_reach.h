// How a rank accesses the other ranks' tensors: registered ones are mapped here; others are read
// and written through the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "onehost/channel.h"

namespace rueda {

// Location of this rank's [address, address + bytes), in terms that other ranks can use.
struct Reach {
  Place place = Place::nothing;
  std::uint64_t where = 0;

  [[nodiscard]] static Reach of(const HostMemory& host, const void* address, std::size_t bytes);
  // The location `offset` bytes further on.
  [[nodiscard]] Reach at(std::size_t offset) const { return {place, where + offset}; }
  // The memory itself if it is mapped here; null otherwise.
  [[nodiscard]] std::byte* seen(const HostMemory& host, int host_rank) const {
    return place == Place::registered ? host.registered_of(host_rank, where) : nullptr;
  }
};

// Copies what `host_rank` has at `reach` to `target`. Place::nothing cannot be read from.
[[nodiscard]] Status pull(const HostMemory& host, int host_rank, const Reach& reach,
                          std::byte* target, std::size_t bytes);

}  // namespace rueda
