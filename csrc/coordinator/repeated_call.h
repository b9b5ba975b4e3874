// A collective of one host tensor, as described by a caller that waits for it. The engine first
// tries to replay an earlier one of this name, which needs no submission: see RoundAtOnce.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/request.h"
#include "rueda/types.h"

namespace rueda {

// Holds references to the caller's data.
struct RepeatedCall {
  std::string_view name;
  Collective collective = Collective::allreduce;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t output_bytes = 0;  // for an allgather, a reduce-scatter or an alltoall
  DataType dtype = DataType::float32;
  std::span<const std::int64_t> shape = {};
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = -1;                              // for a broadcast: world rank
  std::span<const std::int64_t> splits = {};  // for a reduce-scatter or an alltoall
  // For an alltoall: receives the number of rows from each rank.
  std::vector<std::int64_t>* received = nullptr;
};

}  // namespace rueda
