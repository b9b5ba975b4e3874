#include "onehost/host_memory.h"

namespace rueda {

HostMemory::HostMemory(int rank, int size, RegisteredMemory& registered)
    : rank_(rank),
      registered_memory_(&registered),
      control_(static_cast<std::size_t>(size)),
      registered_mappings_(control_.size()),
      registered_(control_.size()),
      remote_(control_.size()),
      processes_(control_.size()) {}

HostMemory::~HostMemory() = default;

std::byte* HostMemory::publish(std::uint64_t key, std::size_t bytes) {
  return blocks_->publish(key, bytes);
}

std::byte* HostMemory::find(int rank, std::uint64_t key) const {
  const ControlMemory& control = control_[static_cast<std::size_t>(rank)];
  const std::uint64_t place = control.directory().find(key);
  return place == 0 ? nullptr : control.at(place);
}

void HostMemory::retire(std::uint64_t key, const std::vector<int>& members) {
  blocks_->retire(key, members);
}

Status HostMemory::read_from(int rank, void* local, std::uint64_t remote, std::size_t bytes) const {
  return read_memory(remote_[static_cast<std::size_t>(rank)], local, remote, bytes);
}

Status HostMemory::write_to(int rank, const void* local, std::uint64_t remote,
                            std::size_t bytes) const {
  return write_memory(remote_[static_cast<std::size_t>(rank)], local, remote, bytes);
}

bool HostMemory::has_ended(int rank) const {
  return processes_[static_cast<std::size_t>(rank)].has_ended();
}

}  // namespace rueda
