// How a compressed allreduce divides a batch. Each tensor is divided among the ranks separately,
// and into runs that are encoded separately, so its result does not depend on what else is in the
// batch. The runs of one owner are contiguous and travel in chunks. The layout is the same on every
// rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reduce/codec.h"
#include "reduce/piece.h"

namespace rueda {

// Elements of one tensor that are encoded together.
struct PieceRun {
  std::size_t piece = 0;
  std::int64_t first = 0;     // within the piece
  std::int64_t count = 0;     // not 0
  std::int64_t in_chunk = 0;  // offset within its chunk
};

struct CompressedChunk {
  std::span<const PieceRun> runs;  // empty: the chunk is not sent
  std::int64_t count = 0;
};

class CompressedLayout {
 public:
  // `chunk`: maximum elements of a chunk, and of a run; at most max_run.
  CompressedLayout(const std::vector<Piece>& pieces, int ranks, std::int64_t chunk);

  // Of the owner with the most; the last ones of other owners may be empty.
  [[nodiscard]] std::int64_t chunks() const { return chunks_; }
  // Elements of the longest chunk.
  [[nodiscard]] std::int64_t longest() const { return longest_; }
  // A chunk of the elements that `owner` reduces.
  [[nodiscard]] CompressedChunk chunk(int owner, std::int64_t number) const;

 private:
  struct Part {
    std::vector<PieceRun> runs;
    std::vector<std::size_t> ends;  // of each chunk, in runs
  };

  static void add(Part& part, std::size_t piece, std::int64_t first, std::int64_t count,
                  std::int64_t chunk);

  std::vector<Part> parts_;  // by owner
  std::int64_t chunks_ = 0;
  std::int64_t longest_ = 0;
};

}  // namespace rueda
