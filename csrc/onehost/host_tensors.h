// The tensors that the ranks of a host reduce together: this rank's, and where to find the others'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "onehost/channel.h"
#include "plan/leaf_tree.h"
#include "reduce/piece.h"
#include "rueda/types.h"

namespace rueda {

struct ElementRange {
  std::int64_t first;
  std::int64_t count;
};

class HostTensors {
 public:
  // `leaves`: a piece's input holds an array per partial sum of this rank; null: a single array.
  HostTensors(const HostChannel& channel, DataType dtype, std::vector<Piece> pieces,
              std::shared_ptr<const LeafPlan> leaves);
  // For a reduce-scatter: this rank gets only these elements of the single piece, and its output
  // has room for just them.
  void divide(ElementRange own) { own_part_ = own; }

  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  [[nodiscard]] const LeafPlan* leaves() const { return leaves_.get(); }
  [[nodiscard]] bool is_divided() const { return own_part_.has_value(); }

  // --- Sizes
  [[nodiscard]] std::size_t element() const { return element_; }
  [[nodiscard]] std::size_t bytes_of(std::int64_t count) const {
    return static_cast<std::size_t>(count) * element_;
  }
  // Totals over all pieces.
  [[nodiscard]] std::int64_t count() const { return count_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_of(count_); }
  // Arrays per input of a member, arrays of all members, and length of this rank's input.
  [[nodiscard]] int inputs_of(int member) const {
    return leaves_ ? leaves_->partials_of(member) : 1;
  }
  [[nodiscard]] std::size_t input_count() const {
    return leaves_ ? leaves_->sources.size() : static_cast<std::size_t>(channel_.size());
  }
  [[nodiscard]] std::size_t input_bytes(const Piece& piece) const {
    return bytes_of(piece.count) * static_cast<std::size_t>(inputs_of(channel_.rank()));
  }

  // --- Places
  // The elements of a piece that this rank gets.
  [[nodiscard]] ElementRange own_part(std::size_t piece) const {
    return own_part_ ? *own_part_ : ElementRange{0, pieces_[piece].count};
  }
  // Where the result for one of these elements goes; null if this rank has no use for it.
  [[nodiscard]] std::byte* own_output(std::size_t piece, std::int64_t element) const {
    std::byte* const output = pieces_[piece].output;
    return output == nullptr ? nullptr
                             : output + bytes_of(element - (own_part_ ? own_part_->first : 0));
  }
  // Where another member's piece is. Published in the line for a single piece, in the table for
  // several.
  [[nodiscard]] Exposure exposure_of(int member, std::size_t piece) const;

 private:
  const HostChannel& channel_;
  const std::size_t element_;
  const std::vector<Piece> pieces_;
  const std::shared_ptr<const LeafPlan> leaves_;
  std::int64_t count_ = 0;
  std::optional<ElementRange> own_part_;
};

}  // namespace rueda
