// Agreement that all ranks have the memory an operation needs, before any of them starts it: a rank
// without memory must not leave the others waiting in NCCL.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace rueda {

// If all have it, this takes a reduction of one number. Only if a rank has none do the ranks
// exchange the reasons.
class MemoryAgreement {
 public:
  // Starts with this rank's status.
  void begin(const Status& own);
  // The host operation to run next; call again once it is done. Null once the ranks agree, and if
  // nothing was begun.
  [[nodiscard]] std::unique_ptr<Operation> next(const Lane& lane, Backend& host);
  // Afterwards: the first rank's problem, if any. Same on all ranks.
  [[nodiscard]] Status verdict(const Lane& lane) const;

 private:
  enum class Step { none, ask, tell };
  using Problem = std::array<char, 256>;  // sent as raw bytes; zero-terminated

  Step step_ = Step::none;
  std::int64_t own_ = 0;  // 1 if this rank has a problem
  std::int64_t any_ = 0;  // nonzero if any rank has
  Problem problem_{};
  std::vector<Problem> problems_;
};

}  // namespace rueda
