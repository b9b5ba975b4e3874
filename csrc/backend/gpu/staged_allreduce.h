// Allreduce of tensors of GPUs through the host's memory, chunk by chunk: while one is copied from
// the GPU another is reduced on the host and a third is on its way back.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/gpu_lane.h"
#include "cuda/stream.h"

namespace rueda {

class StagedAllreduce {
 public:
  StagedAllreduce(const Reduction& reduction, std::vector<Piece> pieces);

  // How many slots of the lane's staging memory it uses, the same on all ranks; their memory.
  [[nodiscard]] std::size_t slots() const;
  Status reserve(GpuLane& gpu) const;
  // Goes on without blocking, and tells whether anything moved.
  Expected<bool> advance(GpuLane& gpu, const Lane& lane, Backend& host);
  // Whether all of it has been enqueued.
  [[nodiscard]] bool is_done() const { return returned_ == chunks_ && joined_; }
  // What the host does at the moment; null where that is nothing.
  [[nodiscard]] const Operation* on_host() const { return reducing_.get(); }

 private:
  static constexpr std::size_t max_slots = 3;
  // A part of a piece that lies within a chunk.
  struct Part {
    std::size_t piece;
    std::int64_t first;
    std::int64_t count;
  };

  [[nodiscard]] std::vector<Part> parts_of(std::int64_t chunk) const;
  [[nodiscard]] std::int64_t count_of(std::int64_t chunk) const;
  Status fetch(GpuLane& gpu, const Lane& lane, std::int64_t chunk);
  Status put_back(GpuLane& gpu, const Lane& lane, std::int64_t chunk);
  Expected<bool> reduce(const Lane& lane, Backend& host);
  Status join_streams(GpuLane& gpu);

  const Reduction reduction_;
  const std::vector<Piece> pieces_;
  std::int64_t count_ = 0;
  bool takes_part_ = true;
  std::int64_t chunk_ = 1;  // elements
  std::int64_t chunks_ = 0;
  std::int64_t fetched_ = 0;
  std::int64_t reduced_ = 0;
  std::int64_t returned_ = 0;
  bool joined_ = false;
  std::array<std::byte*, max_slots> memory_{};  // of the host, by slot
  std::vector<CudaEvent> fetches_;              // by slot: its copy from the GPU
  std::vector<CudaEvent> returns_;              // and back
  std::unique_ptr<Operation> reducing_;
};

}  // namespace rueda
