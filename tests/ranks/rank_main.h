// The main() of a program that mpirun starts once per rank.
#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/clock.h"
#include "core/options.h"
#include "core/strings.h"
#include "membership/open_bootstrap.h"
#include "ranks/rank_threads.h"

namespace rueda::test {

inline void expect_contains(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, str("'", part, "' is in: ", text));
}

template <class T>
T value_of(Expected<T> expected, const std::string& what) {
  expect_ok(expected.status(), what);
  return *std::move(expected);
}

// Like init() in a process that mpirun started.
inline OpenedBootstrap open_world() {
  return value_of(open_bootstrap(Options{}, process_environment()), "open_bootstrap");
}

// Returns the exit code: if it is not 0, mpirun ends the other ranks.
inline int rank_main(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
}

}  // namespace rueda::test
