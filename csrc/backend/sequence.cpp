#include "backend/sequence.h"

#include <utility>

#include "plan/rank_list.h"

namespace rueda {

Sequence::Sequence(std::vector<Step> steps) : steps_(std::move(steps)) {}

bool Sequence::advance_to(std::size_t step) {
  bool moved = false;
  while (!done() && step_ < step) {
    if (!std::exchange(begun_, true)) operation_ = steps_[step_]();
    if (operation_) {
      moved = operation_->advance() || moved;
      if (!operation_->done()) return moved;
      status_ = operation_->status();
      if (!status_.ok()) return true;
      operation_.reset();
    }
    begun_ = false;
    ++step_;
    moved = true;
  }
  return moved;
}

std::vector<int> Sequence::awaited() const {
  return operation_ ? operation_->awaited() : std::vector<int>{};
}

namespace {

// Limit on parts begun early for their free steps, since every advance() checks each of them.
constexpr std::size_t max_ahead = 64;

}  // namespace

Pipeline::Pipeline(std::int64_t parts, std::size_t width, MakePart make, std::size_t free_steps)
    : parts_(parts),
      width_(width),
      make_(std::move(make)),
      free_steps_(free_steps),
      done_(parts == 0) {}

bool Pipeline::begin_next() {
  const std::size_t ahead = free_steps_ > 0 ? max_ahead : 0;
  if (begun_ == parts_ || running_.size() >= width_ + ahead) return false;
  if (!running_.empty() && running_.back().completed() == 0) return false;
  running_.emplace_back(make_(begun_++));
  return true;
}

bool Pipeline::advance() {
  if (done_) return false;
  bool moved = begin_next();
  std::size_t place = 0;
  for (Sequence& part : running_) {
    moved = (place++ < width_ ? part.advance() : part.advance_to(free_steps_)) || moved;
    if (part.status().ok()) continue;
    status_ = part.status();
    done_ = true;
    return true;
  }
  while (!running_.empty() && running_.front().done()) running_.pop_front();
  done_ = begun_ == parts_ && running_.empty();
  return moved;
}

std::vector<int> Pipeline::awaited() const {
  std::vector<int> ranks;
  for (const Sequence& part : running_) add_ranks(ranks, part.awaited());
  return ranks;
}

}  // namespace rueda
