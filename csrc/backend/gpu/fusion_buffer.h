// The memory of a GPU in which a lane packs tensors for NCCL.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/nccl/communicator.h"
#include "backend/nccl/memory.h"
#include "cuda/memory.h"

namespace rueda {

// Kept from operation to operation. Where this NCCL offers it the memory is NCCL's, and a window of
// the communicator, on which its symmetric kernels work, or else registered with it, so that other
// GPUs reach it without another copy; an older one, which is the same on all ranks then, gets
// ordinary memory, and a line of the debug log tells why.
//
// NCCL demands that of all ranks or none what takes part in an operation is registered. So all pack
// an operation or none does, and a rank on which registering fails fails the operation, instead of
// going on without.
class FusionBuffer {
 public:
  // Begins to make room for `bytes`. `communicator` is the same each time, and ready; it may be in
  // progress afterwards. What has been outgrown is freed with this object: freeing waits for the
  // GPU, which may wait for other ranks.
  [[nodiscard]] Status reserve(std::size_t bytes, const NcclLibrary& library,
                               const DeviceReference& device, NcclCommunicator& communicator);
  // That room, null where there was never any, once the communicator is ready again: for one
  // operation at a time, each of which ends in the order of a stream.
  [[nodiscard]] Expected<std::byte*> room(NcclCommunicator& communicator);
  // Before the communicator closes, when nothing uses the buffer any more. One that is aborted
  // forgets what it was told.
  void deregister(NcclCommunicator& communicator);

 private:
  struct Block {
    NcclMemory registrable;
    DeviceMemory ordinary;                 // where there is no other
    const nccl::Window* window = nullptr;  // where NCCL writes it
    void* registration = nullptr;          // where there is no window
    bool is_settled = false;               // it has been seen which of them it is

    [[nodiscard]] std::byte* data() const {
      return registrable.data() != nullptr ? registrable.data() : ordinary.data();
    }
    [[nodiscard]] std::size_t size() const { return registrable.size() + ordinary.size(); }
  };
  [[nodiscard]] static Expected<Block> allocate(std::size_t bytes, const NcclLibrary& library,
                                                const DeviceReference& device);

  std::vector<Block> blocks_;  // the last is in use
};

}  // namespace rueda
