// What the benchmarks do about errors: they end with them.
#pragma once

#include <stdexcept>
#include <utility>

#include "core/status.h"

namespace rueda {

inline void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

template <class T>
T take(Expected<T> expected) {
  check(expected.status());
  return std::move(expected).value();
}

}  // namespace rueda
