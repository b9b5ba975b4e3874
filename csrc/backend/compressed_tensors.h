// The tensors of a compressed allreduce on one rank: what is encoded of them, and what the decoded
// results become there.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "backend/backend.h"
#include "backend/compressed_layout.h"
#include "reduce/codec.h"

namespace rueda {

// A value of a piece is not finite, or more than the codec holds: in the contribution of a rank of
// the lane, or in what all ranks take.
using ReportFault = std::function<void(std::size_t piece, int rank)>;
inline constexpr int all_ranks = -1;

class CompressedTensors {
 public:
  // Requires reduction.compression. Throws std::bad_alloc.
  CompressedTensors(const Reduction& reduction, std::vector<Piece> pieces, const Lane& lane,
                    std::int64_t chunk, ReportFault report);

  [[nodiscard]] const CompressedLayout& layout() const { return layout_; }
  [[nodiscard]] const Codec& codec() const { return *codec_; }

  // The room for one chunk, as the contribution of one rank or as the sum of all.
  [[nodiscard]] std::size_t contribution_bytes(const CompressedChunk& chunk) const {
    return max_bytes(chunk, 1);
  }
  [[nodiscard]] std::size_t result_bytes(const CompressedChunk& chunk) const {
    return max_bytes(chunk, contributors_);
  }

  // This rank's contribution to a chunk, which `target` has room for. With error feedback the
  // residuals of last time go along, and what is lost now becomes the new ones. Returns the bytes.
  std::size_t encode(const CompressedChunk& chunk, std::byte* target);
  // The same as float32, where the codec need not have seen it: nothing is lost of it. A run with
  // what the codec cannot hold has a NaN, as if it had.
  void copy_own(const CompressedChunk& chunk, float* target);

  // sum[i] = what `rank` has contributed, where that is the first one, or += it. False where no
  // encode() has written it.
  [[nodiscard]] bool add_to_sum(const CompressedChunk& chunk, int rank, ConstBytes source,
                                float* sum) const;
  // What the owner makes of the sum before all ranks take it. With error feedback what is lost of
  // it becomes the residuals of this rank's own contribution, of which nothing was lost. Returns
  // the bytes.
  std::size_t encode_result(const CompressedChunk& chunk, float* sum, std::byte* target);

  // Decodes a result into the tensors. False where no encode_result() has written it.
  [[nodiscard]] bool take_result(const CompressedChunk& chunk, ConstBytes source);

 private:
  [[nodiscard]] std::size_t max_bytes(const CompressedChunk& chunk, int partials) const;
  [[nodiscard]] CodecRun described(const PieceRun& run, int partials) const;
  [[nodiscard]] std::byte* element(std::byte* data, std::int64_t index) const;
  const float* gather(const PieceRun& run, float* scratch) const;
  std::size_t encode_run(std::byte* target, const float* values, const CodecRun& run) const;
  [[nodiscard]] ConstBytes without_size(const std::byte* encoded, std::size_t bytes) const;
  [[nodiscard]] const float* decoded(const PieceRun& run, ConstBytes encoded, int partials);
  template <class Visit>
  [[nodiscard]] bool for_each_run(const CompressedChunk& chunk, ConstBytes source, int partials,
                                  const Visit& visit) const;

  Reduction reduction_;
  std::vector<Piece> pieces_;
  CompressedLayout layout_;
  std::unique_ptr<const Codec> codec_;
  int rank_;
  int contributors_;
  ReportFault report_;
  std::vector<float> scratch_;  // of a chunk
  std::vector<float> decoded_;
};

}  // namespace rueda
