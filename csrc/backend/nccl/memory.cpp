#include "backend/nccl/memory.h"

#include "core/memory_release.h"
#include "core/strings.h"

namespace rueda {

Expected<std::byte*> NcclHeap::allocate(std::size_t bytes) const {
  const nccl::Functions& functions = library_->functions();
  const CurrentDevice current(*device_);
  if (!current.status().ok()) return current.status();
  return allocate_with_release(device_->facts().ordinal, [&]() -> Expected<std::byte*> {
    void* address = nullptr;
    if (Status status = library_->check(functions.mem_alloc(&address, bytes),
                                        str("allocating ", bytes, " bytes (ncclMemAlloc)"));
        !status.ok()) {
      return status;
    }
    return static_cast<std::byte*>(address);
  });
}

void NcclHeap::free(std::byte* memory) const {
  const CurrentDevice current(*device_);
  library_->functions().mem_free(memory);
}

}  // namespace rueda
