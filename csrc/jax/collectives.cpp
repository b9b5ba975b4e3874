#include "jax/collectives.h"

#include <cstring>
#include <string>
#include <string_view>

#include "core/strings.h"

namespace rueda::jax {

namespace {

std::vector<Handle> submit_allreduce(const Call& call) {
  AllreduceOptions options;
  options.name = call.name;
  options.op = call.op;
  options.process_set = call.process_set;
  if (call.inputs.size() == 1) return {allreduce(call.inputs[0], call.outputs[0].data, options)};
  std::vector<void*> outputs;
  for (const TensorView& output : call.outputs) outputs.push_back(output.data);
  return grouped_allreduce(call.inputs, outputs, options);
}

// For gather, scatter and exchange, the first dimension is the number of ranks. XLA knows the
// shapes of results before ranks communicate, so all blocks have the same size, which Rueda then
// verifies.
Handle submit_one(const Call& call, std::size_t index, const std::string& name) {
  TensorView input = call.inputs[index];
  const TensorView& output = call.outputs[index];
  const CallOptions options{name, call.process_set};
  if (call.kind == "broadcast") {
    if (output.data != input.data) std::memcpy(output.data, input.data, input.bytes());
    return broadcast(output, call.root, options);
  }
  if (call.kind == "allgather") {
    input.shape.front() = 1;
    return allgather(input, options);
  }
  if (call.kind == "alltoall") return alltoall(input, {}, options);
  if (call.kind == "reduce_scatter") {
    ReduceScatterOptions scatter;
    scatter.name = name;
    scatter.op = call.op;
    scatter.process_set = call.process_set;
    return reduce_scatter(input, scatter);
  }
  throw InvalidArgumentError(
      str("the XLA call asks for '", call.kind, "', which is not a collective"));
}

// For an operation whose result is not needed, but whose tensors must stay until it ends.
void wait_for_end(const Handle& handle) {
  try {
    handle.wait();
  } catch (const Error&) {  // it has ended
  }
}

// Path in the tree of the tensor that Rueda knows as `name`; empty if there is none.
std::string_view path_of(const Call& call, const std::string& name) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    const std::string each = call.inputs.size() == 1 ? call.name : str(call.name, ".", i);
    if (each == name) return call.paths.at(i);
  }
  return {};
}

// All operations of a group fail with the error of one of them.
const Output& output_of(const Call& call, const Handle& handle) {
  try {
    return handle.output();
  } catch (const Error& error) {
    const std::string_view path = path_of(call, error.details().tensor);
    if (path.empty()) throw;
    throw Error(error.code(), str(error.what(), " (", path, ")"), error.peer(), error.details());
  }
}

}  // namespace

std::vector<Handle> submit(const Call& call) {
  if (call.kind == "allreduce") return submit_allreduce(call);
  const bool is_one = call.inputs.size() == 1;
  std::vector<Handle> handles;
  try {
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      handles.push_back(submit_one(call, i, is_one ? call.name : str(call.name, ".", i)));
    }
  } catch (const Error&) {
    for (const Handle& handle : handles) wait_for_end(handle);
    throw;
  }
  return handles;
}

void finish(const Call& call, const std::vector<Handle>& handles) {
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const Output& output = output_of(call, handles[i]);
    if (!output.data) continue;
    const TensorView& result = call.outputs[i];
    const TensorView given{nullptr, output.shape, result.dtype};
    Shape expected = result.shape;
    if (call.kind == "reduce_scatter") expected.front() = 1;
    if (given.shape != expected) {
      throw InvalidArgumentError(
          str("'", call.name, "': the function was traced for a result of shape ",
              to_string(expected), ", but it is ", to_string(given.shape),
              ": trace it again after the ranks of a process set have changed"));
    }
    std::memcpy(result.data, output.data.get(), given.bytes());
  }
}

}  // namespace rueda::jax
