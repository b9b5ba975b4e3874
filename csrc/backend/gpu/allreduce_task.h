// All-reduce of one tensor or several on GPUs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/gpu/gpu_task.h"
#include "cuda/stream.h"

namespace rueda {

// With NCCL a single tensor is reduced where it lies; several are packed into a buffer and unpacked
// from it, in a launch each, converted and scaled on the way where they travel as a narrower type.
//
// Staged, chunk by chunk: while one is copied from the GPU another is reduced on the host and a
// third is on its way back.
class AllreduceTask final : public GpuTask {
 public:
  // `chunk_bytes`: of the staged way.
  AllreduceTask(const Reduction& reduction, std::vector<Piece> pieces, int ranks,
                std::int64_t chunk_bytes);

  [[nodiscard]] bool suits_nccl(const GpuLane& gpu) const override;
  Status enqueue(GpuLane& gpu, const Lane& lane) override;
  Status conclude(GpuLane& gpu, const Lane& lane) override;
  Expected<bool> advance_staged(GpuLane& gpu, const Lane& lane, Backend& host) override;
  [[nodiscard]] bool is_staged() const override { return returned_ == chunks_ && joined_; }
  [[nodiscard]] const Operation* on_host() const override { return reducing_.get(); }

 private:
  static constexpr std::size_t slots = 3;
  // A part of a piece that lies within a chunk.
  struct Part {
    std::size_t piece;
    std::int64_t first;
    std::int64_t count;
  };

  Status pack(GpuLane& gpu, const Lane& lane, std::byte* buffer);
  [[nodiscard]] DataType wire() const { return reduction_.wire.value_or(reduction_.dtype); }

  [[nodiscard]] std::vector<Part> parts_of(std::int64_t chunk) const;
  [[nodiscard]] std::int64_t count_of(std::int64_t chunk) const;
  Status fetch(GpuLane& gpu, const Lane& lane, std::int64_t chunk);
  Status put_back(GpuLane& gpu, const Lane& lane, std::int64_t chunk);
  Expected<bool> reduce(const Lane& lane, Backend& host);
  Status join_streams(GpuLane& gpu);

  const Reduction reduction_;
  const std::vector<Piece> pieces_;
  const int ranks_;
  std::int64_t count_ = 0;
  bool takes_part_ = true;
  std::byte* buffer_ = nullptr;  // where the tensors are packed; null where they are not

  std::int64_t chunk_ = 1;   // elements
  std::int64_t chunks_ = 0;  // of the staged way
  std::int64_t fetched_ = 0;
  std::int64_t reduced_ = 0;
  std::int64_t returned_ = 0;
  bool joined_ = false;
  std::array<std::byte*, slots> memory_{};  // of the host, by slot
  std::vector<CudaEvent> fetches_;          // by slot: its copy from the GPU
  std::vector<CudaEvent> returns_;          // and back
  std::unique_ptr<Operation> reducing_;
};

}  // namespace rueda
