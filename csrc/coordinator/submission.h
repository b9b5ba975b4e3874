// One operation as the application handed it in, from submission to completion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "coordinator/open_handle.h"
#include "core/clock.h"
#include "onehost/host_memory.h"
#include "plan/request.h"
#include "reduce/piece.h"

namespace rueda {

// Names of operations to which the application gave none begin so, and end with a number.
inline constexpr std::string_view numbered_prefix = "unnamed.";
// There are so many numbers, which come round again, so that what a program does over and over has
// the same names each time and can be replayed. Divides by the numbers of operations that a loop
// may have. While an operation of one number waits for other ranks, the next of it waits here.
inline constexpr std::uint64_t numbers_of_unnamed = 120;

struct Submission {
  Request request;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;     // null where the engine allocates the result; see output_bytes
  std::vector<std::int64_t> rows;  // alltoall: for each rank of the set
  KeptByCodec kept;                // with a compression: see AllreduceOptions
  int device = host_device;
  // Not the application's: makes the operation of this name fail on all members.
  bool is_refusal = false;
  void* stream = nullptr;              // of the device
  std::shared_ptr<DeviceEvent> ready;  // on a GPU: what has to be done before the tensor is touched
  OpenHandle handle;
  Time submitted_at{};
  Time taken_at{};                    // from the queue, by the owner of the progress lock
  std::shared_ptr<ControlRoom> room;  // a process set to be added: see reserve_room()
  // The application submitted the name again before this was agreed on.
  Status duplicate;
};
// Or containers would copy what they hold, and the handle of a copy is empty.
static_assert(std::is_nothrow_move_constructible_v<Submission>);

// Makes the operation `name` fail on all members of the set to which it is submitted, because of
// `why`. `other_set`: to which this rank has handed the name instead; -1: to none.
[[nodiscard]] inline std::vector<Submission> refusal_of(const std::string& name, const Status& why,
                                                        int other_set = -1) {
  std::vector<Submission> one(1);
  Submission& refusal = one.front();
  refusal.request.name = name;
  refusal.request.error = why;
  refusal.request.other_set = other_set;
  refusal.handle = std::make_shared<HandleState>();
  refusal.submitted_at = Clock::now();
  refusal.is_refusal = true;
  return one;
}

// "allreduce of 'x'"
[[nodiscard]] std::string describe(const Request& request);

// The error of an operation that ends with its set; what it says of the tensor comes on top of what
// `reason` says of the rank.
[[nodiscard]] Status error_of(const std::string& operation, const std::string& tensor,
                              const Status& reason);
[[nodiscard]] Status error_of(const Request& request, const Status& reason);

}  // namespace rueda
