// Memory in which a lane's operations put tensors, kept across operations. Outgrown memory is freed
// with the lane, because freeing waits for the GPU, which may be waiting for other ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "backend/gpu/fusion_buffer.h"
#include "backend/gpu/staging_memory.h"

namespace rueda {

class LaneMemory {
 public:
  // GPU memory for NCCL. Used by one operation at a time; each leaves it in the order of the lane's
  // stream.
  [[nodiscard]] FusionBuffer& fusion() { return fusion_; }

  // Host memory by slot, of at least `bytes` bytes.
  [[nodiscard]] Expected<StagingMemory*> staging(const DeviceReference& device, std::size_t slot,
                                                 std::size_t bytes);
  // Number of leading slots that all ranks have, in the size an allreduce needs.
  [[nodiscard]] std::size_t agreed_slots() const { return agreed_slots_; }
  void agree_on_slots(std::size_t slots) { agreed_slots_ = std::max(agreed_slots_, slots); }

  // Records that memory for an application's result could not be allocated. The operation that was
  // to write it takes the status, once.
  void note_shortage(const Status& why) { shortage_ = why; }
  [[nodiscard]] Status take_shortage() { return std::exchange(shortage_, Status()); }

 private:
  FusionBuffer fusion_;
  std::map<std::size_t, StagingMemory> staging_;  // by slot
  std::vector<StagingMemory> outgrown_staging_;
  std::size_t agreed_slots_ = 0;
  Status shortage_;
};

}  // namespace rueda
