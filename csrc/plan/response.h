// What all ranks of a process set will do next: the result of negotiation.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/request.h"

namespace rueda {

enum class ResponseKind : std::uint8_t {
  execute,  // every rank has submitted it, or has joined
  error,    // it fails on every rank that has submitted it
  warning,  // it has waited for a long time, and keeps waiting
  joined,   // every rank has joined
  left,     // a rank shuts down: nothing more can be agreed on in this set
};

struct Response {
  ResponseKind kind = ResponseKind::execute;
  // execute: what all have agreed on. error, warning: its name and group.
  Request request;
  // execute of an allgather: the first extent of each rank of the set.
  std::vector<std::int64_t> first_extents;
  // execute: the ranks that have joined without submitting it; they contribute the identity.
  std::vector<int> absent;
  Status status;       // error, warning, left
  int other_set = -1;  // error: the set for which the refusing rank submitted the name instead
  int rank = -1;       // joined: the last rank; left: the rank that leaves
};

// The responses of one list are fused together, on every rank in the same way.
using ResponseList = std::vector<Response>;

}  // namespace rueda
