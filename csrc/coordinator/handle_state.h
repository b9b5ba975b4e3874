// What a Handle points to: written once by the coordinator, waited for by anyone.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/clock.h"
#include "core/futex.h"
#include "core/status.h"
#include "rueda/rueda.h"

namespace rueda {

struct HandleState {
  // Published by `done`; read only after it.
  Status status;
  Output output;

  [[nodiscard]] bool is_done() const { return done.load(std::memory_order_acquire) != 0; }

  // Called once, by the coordinator (or by whoever refused the submission).
  void complete(Status result, Output result_output = {}) {
    status = std::move(result);
    output = std::move(result_output);
    done.store(1, std::memory_order_release);
    futex_wake_all(done);
  }

  // Sleeps until done (FutexWake::changed), the deadline (timeout) or a signal handler has run
  // (interrupted).
  FutexWake wait(std::optional<Time> deadline) const {
    while (!is_done()) {
      const FutexWake wake = futex_wait(done, 0, deadline);
      if (wake == FutexWake::interrupted) return wake;
      if (wake == FutexWake::timeout) return is_done() ? FutexWake::changed : wake;
    }
    return FutexWake::changed;
  }

  std::atomic<std::uint32_t> done{0};
};

}  // namespace rueda
