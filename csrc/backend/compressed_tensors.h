// The tensors of a compressed allreduce on one rank: encodes their elements, and decodes results
// into them.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "backend/backend.h"
#include "backend/compressed_layout.h"
#include "reduce/codec.h"

namespace rueda {

// A value of a piece is not finite or exceeds what the codec holds, either in the contribution of
// `rank` (within the lane) or, with all_ranks, in the result.
using ReportFault = std::function<void(std::size_t piece, int rank)>;
inline constexpr int all_ranks = -1;

class CompressedTensors {
 public:
  // Requires reduction.compression. Throws std::bad_alloc.
  CompressedTensors(const Reduction& reduction, std::vector<Piece> pieces, const Lane& lane,
                    std::int64_t chunk, ReportFault report);

  [[nodiscard]] const CompressedLayout& layout() const { return layout_; }
  [[nodiscard]] const Codec& codec() const { return *codec_; }

  // Room needed for one chunk, as one rank's contribution or as the sum of all.
  [[nodiscard]] std::size_t contribution_bytes(const CompressedChunk& chunk) const {
    return max_bytes(chunk, 1);
  }
  [[nodiscard]] std::size_t result_bytes(const CompressedChunk& chunk) const {
    return max_bytes(chunk, contributors_);
  }

  // Encodes this rank's contribution into `target`, which has room for it. Error feedback adds the
  // last call's residuals and stores the new loss as residuals. Returns the number of bytes.
  std::size_t encode(const CompressedChunk& chunk, std::byte* target);
  // The same as float32, without the codec and its loss. A run with a value that the codec cannot
  // hold gets a NaN, as if it had been encoded.
  void copy_own(const CompressedChunk& chunk, float* target);

  // Sets sum[i] to the contribution of `rank` if it is the first, else adds it. False if `source`
  // was not written by encode().
  [[nodiscard]] bool add_to_sum(const CompressedChunk& chunk, int rank, ConstBytes source,
                                float* sum) const;
  // Encodes the owner's sum, as all ranks will get it. With error feedback, the loss becomes the
  // residuals of this rank's own contribution, which itself lost nothing. Returns the number of
  // bytes.
  std::size_t encode_result(const CompressedChunk& chunk, float* sum, std::byte* target);

  // Decodes a result into the tensors. False if `source` was not written by encode_result().
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
  std::vector<float> scratch_;  // one chunk
  std::vector<float> decoded_;
};

}  // namespace rueda
