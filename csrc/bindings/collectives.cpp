#include "collectives.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/bindings.h"
#include "errors.h"
#include "gil.h"
#include "handle.h"
#include "rueda/rueda.h"

namespace py = pybind11;

namespace rueda::bindings {

void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

namespace {

DataType data_type(int code) {
  if (code < 0 || static_cast<std::size_t>(code) >= data_types.size()) {
    throw InternalError("there is no element type " + std::to_string(code));
  }
  return static_cast<DataType>(code);
}

}  // namespace

std::optional<DataType> wire_type(int code) {
  return code < 0 ? std::nullopt : std::optional(data_type(code));
}

ReduceOp reduce_op(int code) {
  if (code < 0 || static_cast<std::size_t>(code) >= reduce_op_names.size()) {
    throw InternalError("there is no reduction " + std::to_string(code));
  }
  return static_cast<ReduceOp>(code);
}

Compression compression(int codec, double fraction) {
  if (codec < 0 || static_cast<std::size_t>(codec) >= codec_names.size()) {
    throw InternalError("there is no codec " + std::to_string(codec));
  }
  return {static_cast<CodecKind>(codec), fraction};
}

TensorView view(std::uintptr_t address, Shape shape, int dtype, int device, std::uintptr_t stream) {
  return {pointer(address), std::move(shape), data_type(dtype), device, pointer(stream)};
}

namespace {

Handle submit_allreduce(std::uintptr_t input, std::uintptr_t output, Shape shape, int dtype,
                        const std::string& name, int op, double prescale, double postscale, int set,
                        int wire, int device, std::uintptr_t stream, int codec, double fraction,
                        std::uintptr_t residual, std::uint64_t seed, std::uintptr_t velocity,
                        double momentum, std::int32_t priority, std::vector<int> leaf_ranks) {
  return allreduce(view(input, std::move(shape), dtype, device, stream), pointer(output),
                   {.name = name,
                    .op = reduce_op(op),
                    .prescale_factor = prescale,
                    .postscale_factor = postscale,
                    .process_set = {set},
                    .priority = priority,
                    .wire_dtype = wire_type(wire),
                    .compression = compression(codec, fraction),
                    .residuals = {static_cast<float*>(pointer(residual))},
                    .velocities = {static_cast<float*>(pointer(velocity))},
                    .momentum = momentum,
                    .seed = seed,
                    .leaf_ranks = std::move(leaf_ranks)});
}

std::vector<float*> arrays_at(const std::vector<std::uintptr_t>& addresses) {
  std::vector<float*> arrays;
  for (const std::uintptr_t each : addresses) arrays.push_back(static_cast<float*>(pointer(each)));
  return arrays;
}

GroupHandle submit_grouped_allreduce(
    const std::vector<std::uintptr_t>& inputs, const std::vector<std::uintptr_t>& outputs,
    std::vector<Shape> shapes, const std::vector<int>& dtypes, const std::string& name, int op,
    double prescale, double postscale, int set, int wire, const std::vector<int>& devices,
    std::uintptr_t stream, int codec, double fraction, const std::vector<std::uintptr_t>& residuals,
    std::uint64_t seed, const std::vector<std::uintptr_t>& velocities, double momentum,
    std::int32_t priority) {
  std::vector<TensorView> views;
  std::vector<void*> targets;
  views.reserve(inputs.size());
  targets.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const int device = devices.empty() ? host_device : devices.at(i);
    views.push_back(view(inputs[i], std::move(shapes.at(i)), dtypes.at(i), device, stream));
    targets.push_back(pointer(outputs.at(i)));
  }
  return GroupHandle(grouped_allreduce(views, targets,
                                       {.name = name,
                                        .op = reduce_op(op),
                                        .prescale_factor = prescale,
                                        .postscale_factor = postscale,
                                        .process_set = {set},
                                        .priority = priority,
                                        .wire_dtype = wire_type(wire),
                                        .compression = compression(codec, fraction),
                                        .residuals = arrays_at(residuals),
                                        .velocities = arrays_at(velocities),
                                        .momentum = momentum,
                                        .seed = seed}));
}

// For a caller that waits at once: the list that gets the handle, and the longest wait in seconds.
struct Waiting {
  std::optional<py::list> begun;
  std::optional<double> limit;
};

// Begins an operation. For a caller that waits at once, also carries it out, until it is time to
// check for signals at the latest. The caller then finds the handle in its list, even if a signal
// handler raises before this returns. The caller holds the GIL, which is released because
// submission may wait for the progress lock.
template <class Begin, class Do>
py::object begin_or_do(Waiting waiting, const Begin& begin, const Do& do_it) {
  Handle handle;
  {
    const GilReleased released;
    if (waiting.begun) {
      std::optional<Time> deadline;
      if (waiting.limit) deadline = Clock::now() + seconds(std::clamp(*waiting.limit, 0.0, 1e9));
      handle = do_it(end_of_sleep(deadline));
    } else {
      handle = begin();
    }
  }
  py::object object = py::cast(std::move(handle));
  if (waiting.begun) waiting.begun->append(object);
  return object;
}

py::object submit_reduce_scatter(std::uintptr_t input, Shape shape, int dtype,
                                 const std::string& name, int op, double prescale, double postscale,
                                 std::vector<std::int64_t> splits, int set, int device,
                                 std::uintptr_t stream, std::uintptr_t result,
                                 std::size_t result_bytes, std::optional<py::list> begun,
                                 std::optional<double> limit) {
  const TensorView tensor = view(input, std::move(shape), dtype, device, stream);
  const ReduceScatterOptions options{.name = name,
                                     .op = reduce_op(op),
                                     .prescale_factor = prescale,
                                     .postscale_factor = postscale,
                                     .splits = std::move(splits),
                                     .process_set = {set},
                                     .result = {pointer(result), result_bytes}};
  return begin_or_do(
      {std::move(begun), limit}, [&] { return reduce_scatter(tensor, options); },
      [&](Time until) { return reduce_scatter_blocking(tensor, options, until); });
}

py::object submit_allgather(std::uintptr_t input, Shape shape, int dtype, const std::string& name,
                            int set, int device, std::uintptr_t stream, std::uintptr_t result,
                            std::size_t result_bytes, std::optional<py::list> begun,
                            std::optional<double> limit) {
  const TensorView tensor = view(input, std::move(shape), dtype, device, stream);
  const CallOptions options{name, {set}, {pointer(result), result_bytes}};
  return begin_or_do(
      {std::move(begun), limit}, [&] { return allgather(tensor, options); },
      [&](Time until) { return allgather_blocking(tensor, options, until); });
}

py::object submit_broadcast(std::uintptr_t data, Shape shape, int dtype, int root,
                            const std::string& name, int set, int device, std::uintptr_t stream,
                            std::optional<py::list> begun, std::optional<double> limit) {
  const TensorView tensor = view(data, std::move(shape), dtype, device, stream);
  const CallOptions options{name, {set}};
  return begin_or_do(
      {std::move(begun), limit}, [&] { return broadcast(tensor, root, options); },
      [&](Time until) { return broadcast_blocking(tensor, root, options, until); });
}

py::object submit_alltoall(std::uintptr_t input, Shape shape, int dtype,
                           const std::vector<std::int64_t>& splits, const std::string& name,
                           int set, int device, std::uintptr_t stream, std::uintptr_t result,
                           std::size_t result_bytes, std::optional<py::list> begun,
                           std::optional<double> limit) {
  const TensorView tensor = view(input, std::move(shape), dtype, device, stream);
  const CallOptions options{name, {set}, {pointer(result), result_bytes}};
  return begin_or_do(
      {std::move(begun), limit}, [&] { return alltoall(tensor, splits, options); },
      [&](Time until) { return alltoall_blocking(tensor, splits, options, until); });
}

}  // namespace

// Submission may wait for the progress lock, so it runs without the GIL.
void bind_collectives(py::module_& module) {
  const py::call_guard<GilReleased> released;
  module.def("allreduce", &submit_allreduce, released, py::arg("input"), py::arg("output"),
             py::arg("shape"), py::arg("dtype"), py::arg("name"), py::arg("op"),
             py::arg("prescale"), py::arg("postscale"), py::arg("set"), py::arg("wire") = -1,
             py::arg("device") = host_device, py::arg("stream") = 0, py::arg("codec") = 0,
             py::arg("fraction") = 0.0, py::arg("residual") = 0, py::arg("seed") = 0,
             py::arg("velocity") = 0, py::arg("momentum") = 0.0, py::arg("priority") = 0,
             py::arg("leaf_ranks") = std::vector<int>());
  module.def("grouped_allreduce", &submit_grouped_allreduce, released, py::arg("inputs"),
             py::arg("outputs"), py::arg("shapes"), py::arg("dtypes"), py::arg("name"),
             py::arg("op"), py::arg("prescale"), py::arg("postscale"), py::arg("set"),
             py::arg("wire") = -1, py::arg("devices") = std::vector<int>(), py::arg("stream") = 0,
             py::arg("codec") = 0, py::arg("fraction") = 0.0,
             py::arg("residuals") = std::vector<std::uintptr_t>(), py::arg("seed") = 0,
             py::arg("velocities") = std::vector<std::uintptr_t>(), py::arg("momentum") = 0.0,
             py::arg("priority") = 0);
  module.def("divide_leaves", &divide_leaves);
  module.def("reassign_leaves", &reassign_leaves);
  // The merges after each leaf, and the partial sums as (first, count).
  // Takes parts as (first, count); gives the merges after each, and the partial sums likewise.
  module.def("schedule_of_parts", [](int total, const std::vector<std::pair<int, int>>& given) {
    std::vector<LeafNode> parts;
    for (const auto& [first, count] : given) parts.push_back({first, count});
    const LeafSchedule schedule = schedule_of_parts(total, parts);
    std::vector<std::pair<int, int>> partials;
    for (const LeafNode& node : schedule.partials) partials.emplace_back(node.first, node.count);
    return std::pair(schedule.merges, partials);
  });
  // begun: see begin_or_do(). The returned handle is waited for like any other.
  const py::arg_v begun = py::arg("begun") = py::none();
  const py::arg_v limit = py::arg("limit") = py::none();
  module.def("reduce_scatter", &submit_reduce_scatter, py::arg("input"), py::arg("shape"),
             py::arg("dtype"), py::arg("name"), py::arg("op"), py::arg("prescale"),
             py::arg("postscale"), py::arg("splits"), py::arg("set"),
             py::arg("device") = host_device, py::arg("stream") = 0, py::arg("result") = 0,
             py::arg("result_bytes") = 0, begun, limit);
  module.def("allgather", &submit_allgather, py::arg("input"), py::arg("shape"), py::arg("dtype"),
             py::arg("name"), py::arg("set"), py::arg("device") = host_device,
             py::arg("stream") = 0, py::arg("result") = 0, py::arg("result_bytes") = 0, begun,
             limit);
  module.def("broadcast", &submit_broadcast, py::arg("tensor"), py::arg("shape"), py::arg("dtype"),
             py::arg("root"), py::arg("name"), py::arg("set"), py::arg("device") = host_device,
             py::arg("stream") = 0, begun, limit);
  module.def("alltoall", &submit_alltoall, py::arg("input"), py::arg("shape"), py::arg("dtype"),
             py::arg("splits"), py::arg("name"), py::arg("set"), py::arg("device") = host_device,
             py::arg("stream") = 0, py::arg("result") = 0, py::arg("result_bytes") = 0, begun,
             limit);
  module.def(
      "barrier", [](const std::string& name, int set) { return barrier({name, {set}}); }, released);
  module.def(
      "join", [](const std::string& name, int set) { return join({name, {set}}); }, released);
  module.def(
      "send",
      [](std::uintptr_t tensor, Shape shape, int dtype, int target, std::int64_t tag, int set) {
        return send(view(tensor, std::move(shape), dtype), target, {tag, {set}});
      },
      released);
  module.def(
      "recv",
      [](std::uintptr_t tensor, Shape shape, int dtype, int source, std::int64_t tag, int set,
         bool may_wait_long) {
        return recv(view(tensor, std::move(shape), dtype), source, {tag, {set}, may_wait_long});
      },
      released, py::arg("tensor"), py::arg("shape"), py::arg("dtype"), py::arg("source"),
      py::arg("tag"), py::arg("set"), py::arg("may_wait_long") = false);
  module.def(
      "refuse",
      [](const std::string& name, int set, const std::string& why, bool unsupported, int group_size,
         const std::string& reason) {
        return refuse(name, {set}, why,
                      unsupported ? ErrorCode::unsupported : ErrorCode::invalid_argument,
                      group_size, error_reason(reason));
      },
      released, py::arg("name"), py::arg("set"), py::arg("why"), py::arg("unsupported"),
      py::arg("group_size"), py::arg("reason") = "");
}

}  // namespace rueda::bindings
