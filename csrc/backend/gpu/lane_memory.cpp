#include "backend/gpu/lane_memory.h"

#include "backend/gpu/growth.h"

namespace rueda {

Expected<StagingMemory*> LaneMemory::staging(const DeviceReference& device, std::size_t slot,
                                             std::size_t bytes) {
  StagingMemory& memory = staging_[slot];
  if (memory.size() < bytes) {
    auto larger = StagingMemory::allocate(device, grown(memory.size(), bytes));
    if (!larger) return larger.status();
    outgrown_staging_.push_back(std::exchange(memory, std::move(larger).value()));
  }
  return &memory;
}

}  // namespace rueda
