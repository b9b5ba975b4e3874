// Whether all ranks have the memory that an operation needs, before any of them starts it: a rank
// that has none must not leave the others waiting in NCCL.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace rueda {

class MemoryAgreement {
 public:
  // Tells the others `own`, and asks for theirs.
  [[nodiscard]] std::unique_ptr<Operation> ask(const Lane& lane, Backend& host, const Status& own);
  // Once that is done: the first problem of a rank, the same on all. Ok where nobody was asked.
  [[nodiscard]] Status verdict(const Lane& lane) const;

 private:
  using Card = std::array<char, 256>;  // travels as it lies in memory; ends with a zero

  Card card_{};
  std::vector<Card> cards_;
};

}  // namespace rueda
