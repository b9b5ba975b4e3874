// What all entry points begin with.
#pragma once

#include <string>

#include "driver_state.h"

// Before anything else, each function counts itself and fails if a test wants it to.
#define BEGIN_ANYWHERE()                              \
  auto& state = rueda::test::DriverState::instance(); \
  if (const CUresult planned = state.begin(__func__, false); planned != CUDA_SUCCESS) return planned
// The same where a device has to be current.
#define BEGIN()                                       \
  auto& state = rueda::test::DriverState::instance(); \
  if (const CUresult planned = state.begin(__func__, true); planned != CUDA_SUCCESS) return planned

namespace rueda::test {

inline CUresult refuse(DriverState& state, const std::string& what) {
  state.misused(what);
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace rueda::test
