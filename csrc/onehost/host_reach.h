// How a rank gets at the tensors of the others: where they are registered it sees them, elsewhere
// it reads and writes them through the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "onehost/channel.h"

namespace rueda {

// Where [address, address + bytes) of this rank lies, as the others need to know.
struct Reach {
  Place place = Place::nothing;
  std::uint64_t where = 0;

  [[nodiscard]] static Reach of(const HostMemory& host, const void* address, std::size_t bytes);
  // This much further on.
  [[nodiscard]] Reach at(std::size_t offset) const { return {place, where + offset}; }
  // The memory itself, if it can be seen here; null otherwise.
  [[nodiscard]] std::byte* seen(const HostMemory& host, int host_rank) const {
    return place == Place::registered ? host.registered_of(host_rank, where) : nullptr;
  }
};

// target = what `from` has at `reach`. Place::nothing is no place to read from.
[[nodiscard]] Status pull(const HostMemory& host, int host_rank, const Reach& reach,
                          std::byte* target, std::size_t bytes);

}  // namespace rueda
