#include <algorithm>

#include "api/bindings.h"
#include "api/current_runtime.h"
#include "backend/device_backend.h"
#include "backend/device_result.h"
#include "coordinator/handle_state.h"
#include "core/fork.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

HandleState& state_of(const Handle& handle) {
  if (handle.valid()) return *handle.state();
  throw InvalidArgumentError("this handle belongs to no operation");
}

// In a child made by fork(), nothing completes what its parent has begun.
const HandleState& state_to_wait_for(const Handle& handle) {
  const HandleState& state = state_of(handle);
  if (!state.is_done() && state.generation != fork_generation()) throw_forked();
  return state;
}

}  // namespace

bool Handle::done() const {
  return state_of(*this).is_done();
}

void Handle::wait() const {
  state_to_wait_for(*this).outlast();
  state_->status.throw_if_error();
}

bool Handle::wait_for(std::chrono::nanoseconds timeout) const {
  const Time now = Clock::now();
  const Time deadline = timeout >= Time::max() - now
                            ? Time::max()
                            : now + std::max(timeout, std::chrono::nanoseconds{0});
  if (!state_to_wait_for(*this).outlast(deadline)) return false;
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

const Output& Handle::output() const& {
  wait();
  return state_->output;
}

Output Handle::output() const&& {
  wait();
  return state_->output;
}

void wait_once(const Handle& handle, Time deadline) {
  (void)state_to_wait_for(handle).wait(deadline);
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
