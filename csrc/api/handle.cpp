#include <algorithm>

#include "backend/device_backend.h"
#include "backend/device_result.h"
#include "coordinator/handle_state.h"
#include "rueda/rueda.h"

namespace rueda {

bool Handle::done() const {
  return state_->is_done();
}

void Handle::wait() const {
  while (state_->wait(std::nullopt) == FutexWake::interrupted) {
  }
  state_->status.throw_if_error();
}

bool Handle::wait_for(std::chrono::nanoseconds timeout) const {
  const Time now = Clock::now();
  const Time deadline = timeout >= Time::max() - now
                            ? Time::max()
                            : now + std::max(timeout, std::chrono::nanoseconds{0});
  FutexWake wake = FutexWake::interrupted;
  while (wake == FutexWake::interrupted) wake = state_->wait(deadline);
  if (wake == FutexWake::timeout) return false;
  state_->status.throw_if_error();
  return true;
}

void Handle::wait_on(void* stream) const {
  wait();
  if (state_->output.finished) state_->output.finished->make_stream_wait(stream).throw_if_error();
}

void Handle::release_output(void* stream) const {
  wait();
  if (DeviceResult* const result = device_result_of(state_->output.data)) {
    result->release(stream).throw_if_error();
  }
}

const Output& Handle::output() const {
  wait();
  return state_->output;
}

}  // namespace rueda
