#include "backend/compressed_layout.h"

#include <algorithm>

namespace rueda {

namespace {

std::int64_t end_of(const PieceRun& run) {
  return run.in_chunk + run.count;
}

}  // namespace

CompressedLayout::CompressedLayout(const std::vector<Piece>& pieces, int ranks, std::int64_t chunk)
    : parts_(static_cast<std::size_t>(ranks)) {
  chunk = std::clamp<std::int64_t>(chunk, 1, max_run);
  for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
    const std::int64_t shorter = pieces[piece].count / ranks;
    const std::int64_t longer = pieces[piece].count % ranks;  // this many parts get one more
    std::int64_t first = 0;
    for (int owner = 0; owner < ranks; ++owner) {
      const std::int64_t count = shorter + (owner < longer ? 1 : 0);
      add(parts_[static_cast<std::size_t>(owner)], piece, first, count, chunk);
      first += count;
    }
  }
  for (const Part& part : parts_) {
    chunks_ = std::max(chunks_, static_cast<std::int64_t>(part.ends.size()));
    for (const PieceRun& run : part.runs) longest_ = std::max(longest_, end_of(run));
  }
}

// Appends a run to the last chunk if it fits there.
void CompressedLayout::add(Part& part, std::size_t piece, std::int64_t first, std::int64_t count,
                           std::int64_t chunk) {
  for (const std::int64_t end = first + count; first < end; first += chunk) {
    PieceRun run{piece, first, std::min(chunk, end - first)};
    if (!part.runs.empty() && end_of(part.runs.back()) + run.count <= chunk) {
      run.in_chunk = end_of(part.runs.back());
    } else {
      part.ends.push_back(part.runs.size());
    }
    part.runs.push_back(run);
    part.ends.back() = part.runs.size();
  }
}

CompressedChunk CompressedLayout::chunk(int owner, std::int64_t number) const {
  const Part& part = parts_[static_cast<std::size_t>(owner)];
  const auto index = static_cast<std::size_t>(number);
  if (index >= part.ends.size()) return {};
  const std::size_t begin = index == 0 ? 0 : part.ends[index - 1];
  const std::span runs = std::span(part.runs).subspan(begin, part.ends[index] - begin);
  return {runs, end_of(runs.back())};
}

}  // namespace rueda
