// Operations that are composed of operations.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace rueda {

// One after the other, each begun when the one before has succeeded.
class Sequence final : public Operation {
 public:
  // Begins an operation; null: this rank has nothing to do in this step, or has done it.
  using Step = std::function<std::unique_ptr<Operation>()>;

  explicit Sequence(std::vector<Step> steps);

  bool advance() override { return advance_to(steps_.size()); }
  // Goes on, but begins none of the steps from this one on.
  bool advance_to(std::size_t step);
  [[nodiscard]] bool done() const override { return step_ == steps_.size() || !status_.ok(); }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;
  // How many steps are over.
  [[nodiscard]] std::size_t completed() const { return step_; }

 private:
  const std::vector<Step> steps_;
  std::size_t step_ = 0;
  bool begun_ = false;  // this step
  std::unique_ptr<Operation> operation_;
  Status status_;
};

// Sequences of which several are under way at once, so that their steps overlap: the next one
// begins when the first step of the one before is over, and is `width` ahead of the oldest at most;
// but for the first `free_steps` of each, which go on long before, so that others who have a place
// in the same queue need not wait for what holds up the steps that follow.
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
