// Operations composed of other operations.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace rueda {

// Runs steps one after the other. Each begins when the one before has succeeded.
class Sequence final : public Operation {
 public:
  // Begins an operation. Null: this rank has nothing to do in this step, or has already done it.
  using Step = std::function<std::unique_ptr<Operation>()>;

  explicit Sequence(std::vector<Step> steps);

  bool advance() override { return advance_to(steps_.size()); }
  // Like advance(), but does not begin `step` or any later one.
  bool advance_to(std::size_t step);
  [[nodiscard]] bool done() const override { return step_ == steps_.size() || !status_.ok(); }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;
  // Number of completed steps.
  [[nodiscard]] std::size_t completed() const { return step_; }

 private:
  const std::vector<Step> steps_;
  std::size_t step_ = 0;
  bool begun_ = false;  // the current step
  std::unique_ptr<Operation> operation_;
  Status status_;
};

// Runs several sequences at once so that their steps overlap. A sequence begins when the first step
// of the previous one has completed, and is at most `width` ahead of the oldest. The first
// `free_steps` of each sequence are exempt from that limit: they run far ahead, so that peers in
// the same queue are not held up by whatever delays the later steps.
class Pipeline final : public Operation {
 public:
  using MakePart = std::function<std::vector<Sequence::Step>(std::int64_t part)>;

  Pipeline(std::int64_t parts, std::size_t width, MakePart make, std::size_t free_steps = 0);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  bool begin_next();

  const std::int64_t parts_;
  const std::size_t width_;
  const MakePart make_;
  const std::size_t free_steps_;
  std::int64_t begun_ = 0;
  std::deque<Sequence> running_;
  bool done_;
  Status status_;
};

}  // namespace rueda
