// Combines any number of inputs along a given tree, block by block, so that intermediate values
// stay in the first-level cache.
//
// Every node has the type of the elements: 16-bit floats are widened, combined and rounded at each
// node, and at the root, too, before it is divided and scaled. So a node has the same bits whether
// it is computed here or was one of the inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reduce/combine.h"

namespace rueda {

class TreeCombiner {
 public:
  // Same requirements as Combiner, and a prescale of 1. `merges`: for each input, how often the
  // last two entries pushed up to it are replaced by their combination; one is left in the end.
  TreeCombiner(const Combination& combination, std::vector<int> merges);

  // Like Combiner, with as many inputs as there are merges.
  void operator()(std::span<std::byte* const> targets, std::span<const std::byte* const> inputs,
                  std::int64_t count, Stores stores);

 private:
  void combine_block(std::size_t offset, std::int64_t count, Stores stores);
  // The entry at `place` of the stack.
  [[nodiscard]] std::byte* scratch(std::size_t place) { return &scratch_[place * block_bytes]; }

  static constexpr std::size_t block_bytes = 4096;

  std::vector<int> merges_;
  std::int64_t block_;  // elements
  bool root_is_last_;   // nothing remains to be done to it
  std::size_t element_;
  Combiner node_;
  Combiner last_;  // divides and scales
  std::vector<std::byte> scratch_;
  std::span<std::byte* const> targets_;  // of this call
  std::span<const std::byte* const> inputs_;
  std::vector<std::byte*> shifted_;  // the targets of this block
  std::vector<const std::byte*> stack_;
};

}  // namespace rueda
