#include "onehost/host_reach.h"

#include <cstring>

namespace rueda {

Reach Reach::of(const HostMemory& host, const void* address, std::size_t bytes) {
  if (address == nullptr) return {};
  if (const auto offset = host.registered(address, bytes)) return {Place::registered, *offset};
  return {Place::address, reinterpret_cast<std::uint64_t>(address)};
}

Status pull(const HostMemory& host, int host_rank, const Reach& reach, std::byte* target,
            std::size_t bytes) {
  if (bytes == 0) return {};
  if (const std::byte* seen = reach.seen(host, host_rank)) {
    std::memcpy(target, seen, bytes);
    return {};
  }
  return host.read_from(host_rank, target, reach.where, bytes);
}

}  // namespace rueda
