// Allreduce of small tensors over a transport, by recursive doubling.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "plan/doubling_plan.h"

namespace rueda {

class DoublingOperation final : public Operation {
 public:
  // In place. `data` is this rank's contribution, already scaled.
  DoublingOperation(const Lane& lane, const Reduction& reduction, std::byte* data,
                    std::int64_t count);

  bool advance() override;
  [[nodiscard]] bool done() const override { return next_ == exchanges_.size() || !status_.ok(); }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  void begin(const Exchange& exchange);
  void finish(const Exchange& exchange);
  void finish_result();

  const Lane lane_;
  const Reduction reduction_;
  std::byte* const data_;
  const std::int64_t count_;
  const std::size_t bytes_;
  const std::vector<Exchange> exchanges_;
  std::size_t next_ = 0;
  std::size_t to_combine_ = 0;  // exchanges left
  Ticket sent_;
  Ticket received_;
  std::vector<std::byte> incoming_;
  Status status_;
};

}  // namespace rueda
