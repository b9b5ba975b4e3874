// Whether all ranks have the memory that an operation needs, before any of them starts it: a rank
// that has none must not leave the others waiting in NCCL.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace rueda {

// Where all have it, a number is reduced and nothing else. Only where one has not, they tell each
// other why.
class MemoryAgreement {
 public:
  // What this rank has to tell.
  void begin(const Status& own);
  // What the host has to do next, to be asked again once that is done. Null once the ranks agree,
  // and where nothing was begun.
  [[nodiscard]] std::unique_ptr<Operation> next(const Lane& lane, Backend& host);
  // Then: the first problem of a rank, the same on all.
  [[nodiscard]] Status verdict(const Lane& lane) const;

 private:
  enum class Step { none, ask, tell };
  using Problem = std::array<char, 256>;  // travels as it lies in memory; ends with a zero

  Step step_ = Step::none;
  std::int64_t own_ = 0;  // 1 where this rank has a problem
  std::int64_t any_ = 0;  // where some rank has
  Problem problem_{};
  std::vector<Problem> problems_;
};

}  // namespace rueda
