// The GPU memory in which a lane packs tensors for NCCL.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/nccl/communicator.h"
#include "backend/nccl/memory.h"

namespace rueda {

// Kept across operations. NCCL allocates the memory, which is then a window of the communicator, on
// which NCCL's symmetric kernels work. If the GPUs do not support windows, it is registered
// instead, so that other GPUs reach it without another copy. With one rank it is neither.
//
// NCCL requires that either all ranks or none use registered memory in an operation. So all ranks
// pack an operation or none does, and they agree that all have the memory before it is registered.
class FusionBuffer {
 public:
  [[nodiscard]] bool has_room(std::size_t bytes) const { return size() >= bytes; }
  // Makes room for `bytes`, not yet registered. Outgrown memory is freed only with this object,
  // because freeing waits for the GPU, which may be waiting for other ranks.
  [[nodiscard]] Status reserve(std::size_t bytes, const NcclLibrary& library,
                               const DeviceReference& device);
  // Discards what reserve() made, since another rank has no memory. Nothing may be using it.
  void give_back();
  // Registers new memory with a communicator, which must be ready and the same one each time. The
  // communicator may be busy afterwards.
  [[nodiscard]] Status register_with(NcclCommunicator& communicator);
  // Null if there was never any. Used by one operation at a time; each leaves it in stream order.
  [[nodiscard]] std::byte* data() const {
    return blocks_.empty() ? nullptr : blocks_.back().data();
  }

 private:
  [[nodiscard]] std::size_t size() const { return blocks_.empty() ? 0 : blocks_.back().size(); }

  std::vector<NcclMemory> blocks_;  // the last is in use
  std::size_t registered_ = 0;      // first block not yet registered
};

}  // namespace rueda
