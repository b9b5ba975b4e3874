#include "jax/collectives.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "core/strings.h"

namespace rueda::jax {

namespace {

// How many leaves of a tree an error lists; it counts the rest.
constexpr std::size_t max_listed = 24;

// The number of the world, set by Python.
std::atomic<int> current_world{0};

// Without elements. Ranks agree on shapes, and so on the trees.
TensorView shape_of_tree(const Call& call) {
  static constexpr std::byte nothing{};
  return {const_cast<std::byte*>(&nothing), {0, call.tree}, DataType::uint8};
}

// What compares the ranks' trees; in an allreduce the last of its group.
std::string name_of_tree(const Call& call) {
  return is_compared_first(call) ? str(call.name, ".tree")
                                 : str(call.name, ".", call.inputs.size());
}

std::vector<Handle> submit_allreduce(const Call& call) {
  AllreduceOptions options;
  options.name = call.name;
  options.op = call.op;
  options.process_set = call.process_set;
  if (!call.is_tree()) return {allreduce(call.inputs[0], call.outputs[0].data, options)};
  std::vector<TensorView> inputs = call.inputs;
  std::vector<void*> outputs;
  for (const TensorView& output : call.outputs) outputs.push_back(output.data);
  inputs.push_back(shape_of_tree(call));
  outputs.push_back(inputs.back().data);
  return grouped_allreduce(inputs, outputs, options);
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

std::string name_of_tensor(const Call& call, std::size_t index) {
  return call.is_tree() ? str(call.name, ".", index) : call.name;
}

std::string list_of(const std::vector<std::string>& paths) {
  std::string text;
  for (std::size_t i = 0; i < paths.size() && i < max_listed; ++i) {
    text += str(i > 0 ? ", " : "", paths[i]);
  }
  if (paths.size() > max_listed) text += str(" and ", paths.size() - max_listed, " more");
  return text;
}

// Whether ranks have different trees, or trees of different numbers of tensors.
bool is_about_trees(const Call& call, const Error& error) {
  if (error.code() != ErrorCode::mismatch || !call.is_tree()) return false;
  const ErrorDetails& details = error.details();
  return details.field == "group" || details.tensor == name_of_tree(call);
}

[[noreturn]] void throw_trees_differ(const Call& call, const Error& error) {
  throw Error(error.code(),
              str("'", call.name, "': the tree of rank ", error.peer(),
                  " differs from that of other ranks; on this rank it has the leaves ",
                  list_of(call.paths)),
              error.peer(), {.tensor = call.name, .field = "tree"});
}

// Path in the tree of the tensor that Rueda knows as `name`; empty if there is none.
std::string_view path_of(const Call& call, const std::string& name) {
  for (std::size_t i = 0; i < call.inputs.size(); ++i) {
    if (name_of_tensor(call, i) == name) return call.paths.at(i);
  }
  return {};
}

// All operations of a group fail with the error of one of them.
const Output& output_of(const Call& call, const Handle& handle) {
  try {
    return handle.output();
  } catch (const Error& error) {
    if (is_about_trees(call, error)) throw_trees_differ(call, error);
    const std::string_view path = path_of(call, error.details().tensor);
    if (path.empty()) throw;
    throw Error(error.code(), str(error.what(), " (", path, ")"), error.peer(), error.details());
  }
}

[[noreturn]] void throw_traced_for(const Call& call, const std::string& what) {
  throw InvalidArgumentError(str("'", call.name, "': the function was traced for ", what,
                                 "; call jax.clear_caches(), so that it is traced again"));
}

// What was traced for a rank that has been lost since would be zeros on all.
void require_root(const Call& call) {
  if (call.kind != "reduce" || call.has_root) return;
  throw_traced_for(call, str("root rank ", call.root, ", which is not in the process set now"));
}

// The parts that ranks get would have other sizes, and only some ranks could tell by theirs.
void require_same_size(const Call& call) {
  if (call.kind != "reduce_scatter") return;
  for (const TensorView& input : call.inputs) {
    const auto traced = static_cast<std::size_t>(input.shape.front());
    if (traced == call.members) continue;
    throw_traced_for(call, str(traced, " ranks, but the process set now has ", call.members));
  }
}

}  // namespace

void set_world(int number) {
  current_world = number;
}

void locate(Call& call) {
  if (call.world != 0 && call.world != current_world) {
    throw_traced_for(call, "a process set of a world that has been left since");
  }
  const std::vector<int> ranks = ranks_of(call.process_set);
  const int own = rank_in(call.process_set);
  call.members = ranks.size();
  call.has_root = std::find(ranks.begin(), ranks.end(), call.root) != ranks.end();
  call.is_root = own >= 0 && ranks.at(static_cast<std::size_t>(own)) == call.root;
}

bool is_compared_first(const Call& call) {
  return call.is_tree() && !call.is_allreduce();
}

Handle compare_trees(const Call& call) {
  AllreduceOptions options;
  options.name = name_of_tree(call);
  options.op = ReduceOp::sum;
  options.process_set = call.process_set;
  const TensorView tree = shape_of_tree(call);
  return allreduce(tree, tree.data, options);
}

void require_same_tree(const Call& call, const Handle& compared) {
  static_cast<void>(output_of(call, compared));
}

std::vector<Handle> submit(const Call& call) {
  if (call.is_allreduce()) return submit_allreduce(call);
  std::vector<Handle> handles;
  try {
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      handles.push_back(submit_one(call, i, name_of_tensor(call, i)));
    }
  } catch (const Error&) {
    for (const Handle& handle : handles) wait_for_end(handle);
    throw;
  }
  return handles;
}

void finish(const Call& call, const std::vector<Handle>& handles) {
  for (const Handle& handle : handles) static_cast<void>(output_of(call, handle));
  require_root(call);
  require_same_size(call);
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    const Output& output = handles[i].output();
    if (call.kind == "reduce" && !call.is_root) {
      std::memset(call.outputs[i].data, 0, call.outputs[i].bytes());
    }
    if (!output.data) continue;
    const TensorView& result = call.outputs[i];
    const TensorView given{nullptr, output.shape, result.dtype};
    Shape expected = result.shape;
    if (call.kind == "reduce_scatter") expected.front() = 1;
    if (given.shape != expected) {
      throw InvalidArgumentError(
          str("'", call.name, "': the function was traced for a result of shape ",
              to_string(expected), ", but it is ", to_string(given.shape),
              ": a rank has joined, or the ranks of the process set have changed since"));
    }
    std::memcpy(result.data, output.data.get(), given.bytes());
  }
}

}  // namespace rueda::jax
