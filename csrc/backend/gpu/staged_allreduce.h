// Allreduce of GPU tensors through host memory, chunk by chunk: one chunk is copied from the GPU
// while another is reduced on the host and a third is copied back.
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

  // Number of slots it uses in the lane's staging memory, same on all ranks; reserve() allocates
  // them.
  [[nodiscard]] std::size_t slots() const;
  Status reserve(GpuLane& gpu) const;
  // Continues without blocking; returns whether anything moved.
  Expected<bool> advance(GpuLane& gpu, const Lane& lane, Backend& host);
  // Whether all work has been enqueued.
  [[nodiscard]] bool is_done() const { return returned_ == chunks_ && joined_; }
  // What the host is doing at the moment; null if nothing.
  [[nodiscard]] const Operation* on_host() const { return reducing_.get(); }

 private:
  static constexpr std::size_t max_slots = 3;
  // The part of a piece within a chunk.
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
  std::array<std::byte*, max_slots> memory_{};  // host memory, by slot
  std::vector<CudaEvent> fetches_;              // by slot: its copy from the GPU
  std::vector<CudaEvent> returns_;              // its copy back
  std::unique_ptr<Operation> reducing_;
};

}  // namespace rueda
