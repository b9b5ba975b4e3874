// The engine's hold on a handle that the application waits for.
#pragma once

#include <memory>
#include <utility>

#include "coordinator/handle_state.h"

namespace rueda {

// One per handle: a copy, e.g. of a submission that is used again, is empty. If it is dropped
// before the operation is done, for example by an exception that passes through the engine, the
// handle completes with an error, so that nobody waits forever.
class OpenHandle {
 public:
  OpenHandle() = default;
  OpenHandle(std::shared_ptr<HandleState> state) : state_(std::move(state)) {}
  OpenHandle(OpenHandle&&) noexcept = default;
  OpenHandle(const OpenHandle& /*other*/) noexcept {}
  OpenHandle& operator=(OpenHandle&& other) noexcept {
    const OpenHandle dropped(std::move(*this));
    state_ = std::move(other.state_);
    return *this;
  }
  OpenHandle& operator=(const OpenHandle& other) { return *this = OpenHandle(other); }
  ~OpenHandle() {
    if (state_ && !state_->is_done()) {
      state_->complete(Status(ErrorCode::internal,
                              "the operation was abandoned because this rank's engine failed"));
    }
  }

  [[nodiscard]] explicit operator bool() const { return state_ != nullptr; }
  HandleState* operator->() const { return state_.get(); }
  [[nodiscard]] const std::shared_ptr<HandleState>& state() const { return state_; }

 private:
  std::shared_ptr<HandleState> state_;
};

}  // namespace rueda
