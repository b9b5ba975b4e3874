// Values that a codec cannot hold: which tensors of a batch have them, and which ranks contributed
// them.
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

  // This rank has seen that `rank` (within the set) contributed such a value.
  void found_in_contribution(std::size_t tensor, int rank);
  // The result that all ranks get is unusable.
  void found_in_result(std::size_t tensor) { in_result_[tensor] = std::byte{1}; }
  // One byte per tensor, nonzero if its result is unusable.
  [[nodiscard]] const std::vector<std::byte>& results() const { return in_result_; }

  // Exchanges what each rank of the set has found in contributions. Null if every result is usable
  // (on which all ranks agree by now), and in a set of one.
  [[nodiscard]] std::unique_ptr<Operation> exchange();

  // Names the ranks responsible, once exchanged.
  [[nodiscard]] Status status_of(std::size_t tensor, CodecKind codec) const;

 private:
  // One bit per rank of the set: whether it contributed a value that spoiled the tensor's result.
  using Ranks = std::vector<std::byte>;

  [[nodiscard]] std::size_t bytes_of_ranks() const;

  Lane lane_;
  std::vector<std::byte> in_result_;
  std::vector<Ranks> contributors_;  // by tensor; empty: none known
  std::vector<std::byte> table_;     // one row per rank, for each unusable tensor
};

// Runs `steps`, then the exchange of faults. A piece's status is that of its tensor.
[[nodiscard]] std::unique_ptr<Operation> compressed_operation(
    const std::shared_ptr<CompressedFaults>& faults, CodecKind codec,
    std::vector<Sequence::Step> steps);

}  // namespace rueda
