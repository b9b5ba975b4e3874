// The memory of a GPU in which a lane packs tensors for NCCL.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/nccl/communicator.h"
#include "backend/nccl/memory.h"

namespace rueda {

// Kept from operation to operation. The memory is NCCL's, and a window of the communicator, on
// which its symmetric kernels work, or where the GPUs cannot have windows registered with it, so
// that other GPUs reach it without another copy. With one rank there is nothing to reach.
//
// NCCL demands that of all ranks or none what takes part in an operation is registered. So all pack
// an operation or none does, and agree that all have the memory before it is registered.
class FusionBuffer {
 public:
  [[nodiscard]] bool has_room(std::size_t bytes) const { return size() >= bytes; }
  // Makes room for `bytes`, which is not yet registered. What has been outgrown is freed with this
  // object: freeing waits for the GPU, which may wait for other ranks.
  [[nodiscard]] Status reserve(std::size_t bytes, const NcclLibrary& library,
                               const DeviceReference& device);
  // Forgets what reserve() has made: another rank has no memory. Nothing uses it.
  void give_back();
  // Tells a communicator, the same each time and ready, of what is new; it may be in progress
  // afterwards.
  [[nodiscard]] Status register_with(NcclCommunicator& communicator);
  // Null where there was never any: for one operation at a time, each of which ends in the order of
  // a stream.
  [[nodiscard]] std::byte* data() const {
    return blocks_.empty() ? nullptr : blocks_.back().data();
  }

 private:
  [[nodiscard]] std::size_t size() const { return blocks_.empty() ? 0 : blocks_.back().size(); }

  std::vector<NcclMemory> blocks_;  // the last is in use
  std::size_t registered_ = 0;      // the first of them
};

}  // namespace rueda
