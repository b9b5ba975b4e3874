// What XLA requests in one call, in Rueda's terms.
#pragma once

#include <string>
#include <vector>

#include "jax/ffi_abi.h"
#include "rueda/rueda.h"

namespace rueda::jax {

struct Call {
  // "allreduce", "reduce", "allgather", "broadcast", "reduce_scatter", "alltoall". A "reduce" is an
  // allreduce whose result only the root keeps; the other ranks get zeros.
  std::string kind;
  std::string name;
  std::vector<std::string> paths;  // of the tensors in their tree
  int tree = 0;                    // a hash of the paths
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  ProcessSet process_set;
  // If not 0: the world from which on the set has its number, as Python counts worlds.
  int world = 0;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  // Where this rank is in the set when the call begins, which is not known when it is traced.
  std::size_t members = 0;
  bool is_root = false;
  bool has_root = false;  // `root` is a member

  // Whether this is more than an array by itself.
  [[nodiscard]] bool is_tree() const { return paths.size() != 1 || !paths.front().empty(); }
  // Whether ranks submit an allreduce, in which the tensors of a tree are one group.
  [[nodiscard]] bool is_allreduce() const { return kind == "allreduce" || kind == "reduce"; }
};

// Throws InvalidArgumentError for requests that python/rueda/jax never makes.
[[nodiscard]] Call read_call(const ffi::CallFrame& frame);

// Creates an XLA error.
[[nodiscard]] ffi::Error* make_error(const ffi::Api& api, ErrorCode code, const std::string& text);

}  // namespace rueda::jax
