// An operation that is done from the start: it could not begin, or had nothing to wait for.
#pragma once

#include <utility>
#include <vector>

#include "backend/backend.h"

namespace rueda {

class EndedOperation final : public Operation {
 public:
  explicit EndedOperation(Status status = {}) : status_(std::move(status)) {}

  bool advance() override { return false; }
  [[nodiscard]] bool done() const override { return true; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override { return {}; }
  [[nodiscard]] bool uses_transport() const override { return false; }

 private:
  Status status_;
};

}  // namespace rueda
