// Simulates ranks by threads of one process.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/strings.h"
#include "transport/bootstrap.h"

namespace rueda::test {

// Long enough for a loaded machine under a sanitizer: a deadline against hangs, not a measurement.
inline Time soon() {
  return Clock::now() + std::chrono::seconds(60);
}

// Catch2's assertions are for the main thread only; code of other ranks throws instead.
inline void expect(bool holds, const std::string& claim) {
  if (!holds) throw std::runtime_error(claim);
}
inline void expect_ok(const Status& status, const std::string& what) {
  expect(status.ok(), what + ": " + status.to_string());
}

// Returns once the condition holds; throws `what` if it does not in time.
inline void await(const std::function<bool()>& condition, const std::string& what) {
  const Time deadline = soon();
  while (!condition()) {
    expect(Clock::now() < deadline, what);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Runs `body(index)` on `count` threads; returns the texts of everything they threw.
inline std::string run_threads(int count, const std::string& each,
                               const std::function<void(int index)>& body) {
  std::mutex mutex;
  std::string failures;
  std::vector<std::thread> threads;
  for (int index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      try {
        body(index);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        failures += str(each, " ", index, " of ", count, ": ", error.what(), "\n");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// Runs `body(rank)` on `size` threads; fails the test with everything they threw.
inline void run_ranks(int size, const std::function<void(int rank)>& body) {
  const std::string failures = run_threads(size, "rank", body);
  INFO(failures);
  REQUIRE(failures.empty());
}

// The address where a rank's control lane listens for ranks of its host, as published by
// open_control_socket().
inline std::string address_of_lane(Bootstrap& bootstrap, int rank) {
  const std::string told = bootstrap.get("control/" + std::to_string(rank)).value();
  return told.substr(1, told.find(' ') - 1);
}

}  // namespace rueda::test
