#include "backend/gpu/fusion_buffer.h"

#include <utility>

#include "backend/gpu/growth.h"
#include "core/log.h"

namespace rueda {

Status FusionBuffer::reserve(std::size_t bytes, const NcclLibrary& library,
                             const DeviceReference& device, NcclCommunicator& communicator) {
  const std::size_t size = blocks_.empty() ? 0 : blocks_.back().size();
  if (size >= bytes) return {};
  auto larger = allocate(grown(size, bytes), library, device);
  if (!larger) return larger.status();
  Block& block = blocks_.emplace_back(std::move(larger).value());
  if (block.registrable.data() == nullptr) return {};
  const auto window = communicator.register_window(block.data(), block.size());
  if (window) block.window = *window;
  return window.status();
}

Expected<std::byte*> FusionBuffer::room(NcclCommunicator& communicator) {
  if (blocks_.empty()) return nullptr;
  Block& block = blocks_.back();
  const bool is_registered = block.window != nullptr && *block.window != nullptr;
  if (!std::exchange(block.is_settled, true) && block.registrable.data() != nullptr &&
      !is_registered) {
    const auto registration = communicator.register_buffer(block.data(), block.size());
    if (!registration) return registration.status();
    block.registration = *registration;
  }
  return block.data();
}

Expected<FusionBuffer::Block> FusionBuffer::allocate(std::size_t bytes, const NcclLibrary& library,
                                                     const DeviceReference& device) {
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
  }
  return block;
}

void FusionBuffer::deregister(NcclCommunicator& communicator) {
  for (Block& block : blocks_) {
    Status status = communicator.deregister_buffer(std::exchange(block.registration, nullptr));
    if (const auto* window = std::exchange(block.window, nullptr);
        status.ok() && window != nullptr) {
      status = communicator.deregister_window(*window);
    }
    if (!status.ok()) log(LogLevel::debug, "deregistering a fusion buffer: ", status.to_string());
  }
}

}  // namespace rueda
