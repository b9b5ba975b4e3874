// One operation as the application submitted it, from submission to completion.
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

// Prefix of the names of operations to which the application gave none; a number follows.
inline constexpr std::string_view numbered_prefix = "unnamed.";
// Prefix of the names that torch.distributed's backend gives to its operations, by their order
// (python/rueda/torch/c10d/names.py).
inline constexpr std::string_view ordered_prefix = "c10d.";
// How many numbers there are. They are reused in turn, so that a program's loop has the same names
// each time and can be replayed. Divisible by many numbers of operations that a loop may have.
inline constexpr std::uint64_t numbers_of_unnamed = 120;

// Whether the application matches operations of this name by their order, as it did not give the
// name itself: while one waits for other ranks, the next one of that name waits here. A name that
// the application gave must not be submitted again before that.
[[nodiscard]] inline bool is_reused_in_turn(std::string_view name) {
  return name.starts_with(numbered_prefix) || name.starts_with(ordered_prefix);
}

struct Submission {
  Request request;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;     // null if the engine allocates the result; see output_bytes
  std::vector<std::int64_t> rows;  // alltoall: rows for each rank of the set
  KeptByCodec kept;                // with compression: see AllreduceOptions
  int device = host_device;
  // Not submitted by the application: makes the operation of this name fail on all members.
  bool is_refusal = false;
  void* stream = nullptr;              // of the GPU
  std::shared_ptr<DeviceEvent> ready;  // on a GPU: must be done before the tensor is accessed
  OpenHandle handle;
  Time submitted_at{};
  Time taken_at{};                    // from the queue, by the owner of the progress lock
  std::shared_ptr<ControlRoom> room;  // for a process set to be added: see reserve_room()
  // The application submitted the name again before this was agreed on.
  Status duplicate;
};
// Otherwise containers would copy submissions, and the handle of a copy is empty.
static_assert(std::is_nothrow_move_constructible_v<Submission>);

// Makes the operation `name` fail on all members of the set to which it is submitted, because of
// `why`. `other_set`: the set to which this rank has submitted the name instead; -1: none.
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

// The error of an operation that ends with its set: adds the tensor to what `reason` says of the
// rank.
[[nodiscard]] Status error_of(const std::string& operation, const std::string& tensor,
                              const Status& reason);
[[nodiscard]] Status error_of(const Request& request, const Status& reason);

}  // namespace rueda
