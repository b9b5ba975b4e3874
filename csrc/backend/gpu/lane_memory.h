// Memory in which the operations of a lane put tensors, kept from operation to operation. What has
// been outgrown is freed with the lane: freeing waits for the GPU, which may wait for other ranks.
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
  // Of the GPU, for NCCL; used by one operation at a time, which leaves it in the order of the
  // lane's stream.
  [[nodiscard]] FusionBuffer& fusion() { return fusion_; }

  // Of the host, by slots: at least so many bytes.
  [[nodiscard]] Expected<StagingMemory*> staging(const DeviceReference& device, std::size_t slot,
                                                 std::size_t bytes);
  // How many of the first slots all ranks have, as large as an allreduce needs them.
  [[nodiscard]] std::size_t agreed_slots() const { return agreed_slots_; }
  void agree_on_slots(std::size_t slots) { agreed_slots_ = std::max(agreed_slots_, slots); }

  // Of an application's result, which could not be allocated: for the operation that was to write
  // it, which takes it once.
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
