#include "jax/pending.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "jax/collectives.h"

namespace rueda::jax {

namespace {

// Computations that may run in these threads before completions have to wait for one of them.
constexpr int max_threads = 16;

// The only error here is a wrong struct size, and nobody could be told.
void discard(const ffi::Api& api, ffi::Error* error) {
  if (error == nullptr) return;
  ffi::ErrorDestroy arguments{sizeof(arguments), nullptr, error};
  api.error_destroy(&arguments);
}

}  // namespace

void Pending::complete() && {
  try {
    if (compares) {
      require_same_tree(call, handles.front());
      handles = submit(call);
      compares = false;
      return Completions::instance().add(std::move(*this));
    }
    finish(call, handles);
  } catch (const Error& failure) {
    return fail(*api, future, failure.code(), failure.what());
  } catch (const std::exception& failure) {
    return fail(*api, future, ErrorCode::internal, failure.what());
  }
  ffi::FutureSetAvailable arguments{sizeof(arguments), nullptr, future};
  discard(*api, api->future_set_available(&arguments));
}

void fail(const ffi::Api& api, ffi::Future* future, ErrorCode code, const std::string& text) {
  ffi::FutureSetError arguments{sizeof(arguments), nullptr, future, make_error(api, code, text)};
  discard(api, api.future_set_error(&arguments));
}

Completions& Completions::instance() {
  static Completions& instance = *new Completions;
  return instance;
}

void Completions::start() {
  const std::lock_guard lock(mutex_);
  if (threads_ == 0) add_thread();
}

void Completions::add(Pending pending) {
  const std::lock_guard lock(mutex_);
  pending.unfinished = pending.handles.size();
  const std::uint64_t token = next_token_++;
  const Pending& kept = pending_.emplace(token, std::move(pending)).first->second;
  for (const Handle& handle : kept.handles) queue_.watch(handle, token);
}

void Completions::add_thread() {
  std::thread([this] { work(); }).detach();
  ++threads_;
}

void Completions::let_another_go_on() {
  if (listening_ && done_.empty()) return;
  if (idle_ > 0) {
    changed_.notify_one();
  } else if (threads_ < max_threads) {
    try {
      add_thread();
    } catch (const std::system_error&) {  // the existing threads continue later
    }
  }
}

void Completions::hear(const std::vector<std::uint64_t>& tokens) {
  for (const std::uint64_t token : tokens) {
    const auto place = pending_.find(token);
    if (--place->second.unfinished > 0) continue;
    done_.push_back(std::move(place->second));
    pending_.erase(place);
  }
}

void Completions::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!done_.empty()) {
      Pending next = std::move(done_.front());
      done_.pop_front();
      let_another_go_on();
      lock.unlock();
      std::move(next).complete();
      lock.lock();
    } else if (!listening_) {
      listening_ = true;
      lock.unlock();
      const std::vector<std::uint64_t> tokens = queue_.wait(std::chrono::hours(1));
      lock.lock();
      listening_ = false;
      hear(tokens);
    } else {
      ++idle_;
      changed_.wait(lock);
      --idle_;
    }
  }
}

}  // namespace rueda::jax
