#include "backend/gpu/staging_memory.h"

#include <span>
#include <utility>

#include "core/log.h"
#include "onehost/registered_memory.h"

namespace rueda {

Expected<StagingMemory> StagingMemory::allocate(const DeviceReference& device, std::size_t bytes) {
  // The driver refuses pages that are partly pinned already.
  constexpr std::size_t page = 2 << 20;
  const std::size_t whole = (bytes + page - 1) / page * page;
  StagingMemory memory;
  memory.size_ = whole;
  const auto registered = RegisteredMemory::of_process();
  std::shared_ptr<std::byte[]> shared =
      registered ? registered.value()->allocate(whole + page) : nullptr;
  if (shared) {
    const auto address = reinterpret_cast<std::uintptr_t>(shared.get());
    std::byte* const first = shared.get() + (page - address % page) % page;
    auto pinned = HostRegistration::pin(device, std::span(first, whole));
    if (pinned) {
      memory.shared_ = std::move(shared);
      memory.registration_ = std::move(pinned).value();
      memory.data_ = first;
      return memory;
    }
    log(LogLevel::debug, "shared memory cannot be pinned: ", pinned.status().to_string());
  }
  auto pinned = PinnedMemory::allocate(device, whole);
  if (!pinned) return pinned.status();
  memory.pinned_ = std::move(pinned).value();
  memory.data_ = memory.pinned_.data();
  return memory;
}

}  // namespace rueda
