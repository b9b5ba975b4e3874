#include "backend/gpu/fusion_buffer.h"

#include <utility>

#include "backend/gpu/growth.h"

namespace rueda {

Status FusionBuffer::reserve(std::size_t bytes, const NcclLibrary& library,
                             const DeviceReference& device) {
  if (has_room(bytes)) return {};
  auto larger = NcclMemory::allocate({library, device}, grown(size(), bytes));
  if (!larger) return larger.status();
  blocks_.push_back(std::move(larger).value());
  return {};
}

void FusionBuffer::give_back() {
  if (blocks_.size() > registered_) blocks_.pop_back();
}

Status FusionBuffer::register_with(NcclCommunicator& communicator) {
  if (blocks_.size() == registered_) return {};
  registered_ = blocks_.size();
  if (communicator.size() == 1) return {};
  return communicator.register_memory(blocks_.back().data(), blocks_.back().size());
}

}  // namespace rueda
