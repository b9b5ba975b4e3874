#include "backend/gpu/fusion_buffer.h"

#include <utility>

#include "backend/gpu/growth.h"
#include "core/log.h"

namespace rueda {

Expected<std::byte*> FusionBuffer::room(std::size_t bytes, const NcclLibrary& library,
                                        const DeviceReference& device,
                                        NcclCommunicator& communicator) {
  const std::size_t size = blocks_.empty() ? 0 : blocks_.back().size();
  if (size < bytes) {
    auto larger = allocate(grown(size, bytes), library, device, communicator);
    if (!larger) return larger.status();
    blocks_.push_back(std::move(larger).value());
  }
  return blocks_.empty() ? nullptr : blocks_.back().data();
}

Expected<FusionBuffer::Block> FusionBuffer::allocate(std::size_t bytes, const NcclLibrary& library,
                                                     const DeviceReference& device,
                                                     NcclCommunicator& communicator) {
  Block block;
  if (auto registrable = NcclMemory::allocate({library, device}, bytes)) {
    block.registrable = std::move(registrable).value();
  } else if (registrable.status().code() != ErrorCode::unsupported) {
    return registrable.status();
  } else {
    log(LogLevel::debug, "a fusion buffer is not registered: ", registrable.status().to_string());
    auto ordinary = DeviceMemory::allocate(device, bytes);
    if (!ordinary) return ordinary.status();
    block.ordinary = std::move(ordinary).value();
    return block;
  }
  const auto registered = communicator.register_buffer(block.data(), bytes);
  if (!registered) return registered.status();
  block.registration = *registered;
  return block;
}

void FusionBuffer::deregister(NcclCommunicator& communicator) {
  for (Block& block : blocks_) {
    const Status status =
        communicator.deregister_buffer(std::exchange(block.registration, nullptr));
    if (!status) log(LogLevel::debug, "deregistering a fusion buffer: ", status.to_string());
  }
}

}  // namespace rueda
