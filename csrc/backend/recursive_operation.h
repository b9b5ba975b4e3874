// Allreduce of small tensors over a transport, by recursive doubling or halving.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "plan/recursive_plan.h"

namespace rueda {

class RecursiveOperation final : public Operation {
 public:
  // In place. `data` is this rank's contribution, already scaled; `plan` is for this rank of the
  // lane and the elements of `data`.
  RecursiveOperation(const Lane& lane, const Reduction& reduction, std::byte* data,
                     RecursivePlan plan);

  bool advance() override;
  [[nodiscard]] bool done() const override {
    return next_ == plan_.exchanges.size() || !status_.ok();
  }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  void begin(const Exchange& exchange);
  void finish(const Exchange& exchange);
  void combine(const Exchange& exchange);
  void finish_result();
  [[nodiscard]] std::byte* at(const Segment& segment) const;
  [[nodiscard]] std::size_t bytes(const Segment& segment) const;

  const Lane lane_;
  const Reduction reduction_;
  std::byte* const data_;
  const RecursivePlan plan_;
  std::size_t next_ = 0;
  Ticket sent_;
  Ticket received_;
  std::vector<std::byte> incoming_;  // what is to be combined
  Status status_;
};

}  // namespace rueda
