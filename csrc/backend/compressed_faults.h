// Values that a codec cannot hold: in which tensors of a batch they were found, and which ranks
// have contributed them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/sequence.h"

namespace rueda {

class CompressedFaults {
 public:
  CompressedFaults(std::size_t tensors, const Lane& lane);

  // A rank of the set has contributed such a value, as this rank knows.
  void found_in_contribution(std::size_t tensor, int rank);
  // What all ranks take is of no use.
  void found_in_result(std::size_t tensor) { in_result_[tensor] = std::byte{1}; }
  // A byte for each tensor, not 0 where its result is of no use.
  [[nodiscard]] const std::vector<std::byte>& results() const { return in_result_; }

  // Tells all ranks of the set what each has found in contributions. Null where no result is of no
  // use, which all ranks have to know alike by now, and in a set of one.
  [[nodiscard]] std::unique_ptr<Operation> exchange();

  // Names the ranks, once they have been exchanged.
  [[nodiscard]] Status status_of(std::size_t tensor, CodecKind codec) const;

 private:
  // A bit for each rank of the set: who has contributed what a tensor's result is of no use for.
  using Ranks = std::vector<std::byte>;

  [[nodiscard]] std::size_t bytes_of_ranks() const;

  Lane lane_;
  std::vector<std::byte> in_result_;
  std::vector<Ranks> contributors_;  // by tensor; empty: none known
  std::vector<std::byte> table_;     // of each rank, for each tensor of no use
};

// `steps`, and then the exchange of faults. What became of a piece is what is said of its tensor.
[[nodiscard]] std::unique_ptr<Operation> compressed_operation(
    const std::shared_ptr<CompressedFaults>& faults, CodecKind codec,
    std::vector<Sequence::Step> steps);

}  // namespace rueda
