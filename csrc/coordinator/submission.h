// One operation as the application handed it in, from submission to completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "coordinator/handle_state.h"
#include "core/clock.h"
#include "plan/request.h"

namespace rueda {

// Names of operations to which the application gave none begin so, and end with a number.
inline constexpr std::string_view numbered_prefix = "unnamed.";

struct Submission {
  Request request;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;     // null where the engine allocates the result
  std::vector<std::int64_t> rows;  // alltoall: for each rank of the set
  int device = host_device;
  void* stream = nullptr;              // of the device
  std::shared_ptr<DeviceEvent> ready;  // on a GPU: what has to be done before the tensor is touched
  std::shared_ptr<HandleState> handle;
  Time submitted_at{};
  Time taken_at{};  // from the queue, by the coordinator thread
  // Not the application's: makes the operation of this name fail on all members.
  bool is_refusal = false;
  // The application submitted the name again before this was agreed on.
  Status duplicate;
};

}  // namespace rueda
