// A collective of one tensor of the host as the caller describes it who waits for it. It is first
// tried to do again, under this name, what has been done before, which takes no submission: see
// RoundAtOnce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/request.h"
#include "rueda/types.h"

namespace rueda {

// Refers to what the caller has.
struct RepeatedCall {
  std::string_view name;
  Collective collective = Collective::allreduce;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t output_bytes = 0;  // of an allgather, a reduce-scatter or an alltoall
  DataType dtype = DataType::float32;
  std::span<const std::int64_t> shape = {};
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = -1;                              // of the world; of a broadcast
  std::span<const std::int64_t> splits = {};  // of a reduce-scatter or an alltoall
  // Of an alltoall: for the rows that come from each rank.
  std::vector<std::int64_t>* received = nullptr;
};

}  // namespace rueda
