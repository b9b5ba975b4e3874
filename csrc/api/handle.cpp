#include <algorithm>

#include "api/bindings.h"
#include "backend/device_backend.h"
#include "backend/device_result.h"
#include "coordinator/handle_state.h"
#include "rueda/rueda.h"

namespace rueda {

bool Handle::done() const {
  return state_->is_done();
}

void Handle::wait() const {
  state_->outlast();
  state_->status.throw_if_error();
}

bool Handle::wait_for(std::chrono::nanoseconds timeout) const {
  const Time now = Clock::now();
  const Time deadline = timeout >= Time::max() - now
                            ? Time::max()
                            : now + std::max(timeout, std::chrono::nanoseconds{0});
  if (!state_->outlast(deadline)) return false;
  state_->status.throw_if_error();
  return true;
}

void Handle::wait_on(void* stream) const {
  wait();
  make_stream_wait({this, 1}, stream);
}

void Handle::release_output(void* stream) const {
  wait();
  rueda::release_output(state_->output.data, stream);
}

const Output& Handle::output() const {
  wait();
  return state_->output;
}

void wait_once(const Handle& handle, Time deadline) {
  (void)handle.state()->wait(deadline);
}

bool is_finished(const Handle& handle) {
  if (!handle.done()) return false;
  const auto& event = handle.state()->output.finished;
  return !event || event->is_over();
}

void make_stream_wait(std::span<const Handle> handles, void* stream) {
  const DeviceEvent* before = nullptr;
  for (const Handle& handle : handles) {
    const DeviceEvent* const finished = handle.state()->output.finished.get();
    if (finished == nullptr || finished == before) continue;
    finished->make_stream_wait(stream).throw_if_error();
    before = finished;
  }
}

void release_output(const std::shared_ptr<std::byte[]>& memory, void* stream) {
  if (DeviceResult* const result = device_result_of(memory)) {
    result->release(stream).throw_if_error();
  }
}

}  // namespace rueda
