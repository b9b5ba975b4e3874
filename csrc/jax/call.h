// What XLA requests in one call, in Rueda's terms.
#pragma once

#include <string>
#include <vector>

#include "jax/ffi_abi.h"
#include "rueda/rueda.h"

namespace rueda::jax {

struct Call {
  std::string kind;  // "allreduce", "allgather", "broadcast", "reduce_scatter", "alltoall"
  std::string name;
  std::vector<std::string> paths;  // of the tensors in their tree
  int tree = 0;                    // a hash of the paths
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  ProcessSet process_set;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;

  // Whether this is more than an array by itself.
  [[nodiscard]] bool is_tree() const { return paths.size() != 1 || !paths.front().empty(); }
};

// Throws InvalidArgumentError for requests that python/rueda/jax never makes.
[[nodiscard]] Call read_call(const ffi::CallFrame& frame);

// Creates an XLA error.
[[nodiscard]] ffi::Error* make_error(const ffi::Api& api, ErrorCode code, const std::string& text);

}  // namespace rueda::jax
