#include "handle.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "api/bindings.h"
#include "gil.h"
#include "memory.h"
#include "rueda/rueda.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

// A signal can arrive after Python last checked and before the thread sleeps. It then does not end
// the sleep, so no sleep is longer than this.
constexpr auto max_sleep = std::chrono::seconds(1);

}  // namespace

bool wait(const Handle& handle, std::optional<double> timeout) {
  std::optional<Time> deadline;
  // About 30 years count as forever; NaN compares false and does not wait.
  if (timeout) deadline = Clock::now() + seconds(*timeout > 0 ? std::min(*timeout, 1e9) : 0.0);
  while (!handle.done()) {
    if (deadline && Clock::now() >= *deadline) return false;
    {
      const GilReleased released;
      sleep_once(handle, deadline);
    }
    raise_signals();
  }
  return true;
}

Time end_of_sleep(std::optional<Time> deadline) {
  const Time until = Clock::now() + max_sleep;
  return deadline && *deadline < until ? *deadline : until;
}

void sleep_once(const Handle& handle, std::optional<Time> deadline) {
  wait_once(handle, end_of_sleep(deadline));
}

namespace {

// Accepts a Handle or a GroupHandle.
std::vector<Handle> handles_of(const py::handle& object) {
  if (py::isinstance<GroupHandle>(object)) return object.cast<const GroupHandle&>().handles;
  return {object.cast<const Handle&>()};
}

void wait_on_all(const std::vector<Handle>& handles, std::uintptr_t stream) {
  for (const Handle& handle : handles) wait(handle, std::nullopt);
  make_stream_wait(handles, reinterpret_cast<void*>(stream));
}

const Output& output_of(const Handle& handle) {
  wait(handle, std::nullopt);
  return handle.output();
}

bool is_done(const Handle& handle) {
  return handle.done();
}

bool wait_for_group(const GroupHandle& group, std::optional<double> timeout) {
  const Time began = Clock::now();
  const auto left = [&]() -> std::optional<double> {
    if (!timeout) return std::nullopt;
    return *timeout - std::chrono::duration<double>(Clock::now() - began).count();
  };
  return std::ranges::all_of(
      group.handles, [&](const Handle& handle) { return handle.done() || wait(handle, left()); });
}

}  // namespace

void bind_memory(py::module_& module) {
  py::class_<Memory>(module, "Memory", py::buffer_protocol())
      .def_buffer([](const Memory& memory) {
        if (memory.device != host_device) throw py::buffer_error("the memory is on a GPU");
        return py::buffer_info(reinterpret_cast<std::uint8_t*>(memory.bytes.get()),
                               static_cast<py::ssize_t>(memory.size));
      })
      .def("__len__", [](const Memory& memory) { return memory.size; })
      .def_property_readonly(
          "pointer",
          [](const Memory& memory) { return reinterpret_cast<std::uintptr_t>(memory.bytes.get()); })
      .def("release", [](const Memory& memory, std::uintptr_t stream) {
        release_output(memory.bytes, reinterpret_cast<void*>(stream));
      });
  module.def("allocate", [](std::size_t bytes) { return Memory{allocate(bytes), bytes}; });
  module.def(
      "settle_tensor",
      [](std::uintptr_t pointer, std::size_t bytes, int set) {
        const GilReleased released;
        return settle_tensor(reinterpret_cast<const void*>(pointer), bytes, {set});
      },
      py::arg("pointer"), py::arg("bytes"), py::arg("set") = 0);
}

void bind_handle(py::module_& module) {
  py::class_<Handle>(module, "Handle")
      .def("done", &Handle::done)
      .def("finished", &is_finished)
      .def("wait_on",
           [](const Handle& handle, std::uintptr_t stream) { wait_on_all({handle}, stream); })
      .def("wait", &wait, py::arg("timeout") = py::none())
      .def("check", [](const Handle& handle) { output_of(handle); })
      .def("output",
           [](const Handle& handle, std::size_t item_size) {
             const Output& output = output_of(handle);
             const auto size = static_cast<std::size_t>(element_count(output.shape)) * item_size;
             return py::make_tuple(Memory{output.data, output.data ? size : 0, output.device},
                                   output.shape);
           })
      .def("received_splits",
           [](const Handle& handle) { return output_of(handle).received_splits; })
      .def("last_joined_rank",
           [](const Handle& handle) { return output_of(handle).last_joined_rank; })
      .def("source", [](const Handle& handle) { return output_of(handle).source; })
      .def_property_readonly("parts", [](const Handle&) { return 1; });
  py::class_<GroupHandle, Handle>(module, "GroupHandle")
      .def("done",
           [](const GroupHandle& group) { return std::ranges::all_of(group.handles, is_done); })
      .def("finished",
           [](const GroupHandle& group) { return std::ranges::all_of(group.handles, is_finished); })
      .def("wait_on", [](const GroupHandle& group,
                         std::uintptr_t stream) { wait_on_all(group.handles, stream); })
      .def("wait", &wait_for_group, py::arg("timeout") = py::none())
      .def("check",
           [](const GroupHandle& group) {
             for (const Handle& handle : group.handles) output_of(handle);
           })
      .def_property_readonly("parts",
                             [](const GroupHandle& group) { return group.handles.size(); });
  module.def("wait_on_all", [](const py::sequence& objects, std::uintptr_t stream) {
    std::vector<Handle> handles;
    for (const py::handle object : objects) {
      const std::vector<Handle> own = handles_of(object);
      handles.insert(handles.end(), own.begin(), own.end());
    }
    wait_on_all(handles, stream);
  });
  const py::call_guard<GilReleased> released;
  py::class_<CompletionQueue>(module, "CompletionQueue")
      .def(py::init<>())
      .def("watch",
           [](CompletionQueue& queue, const py::handle& object, std::uint64_t token) {
             const std::vector<Handle> handles = handles_of(object);
             const GilReleased without_gil;
             for (const Handle& handle : handles) queue.watch(handle, token);
           })
      .def(
          "wait",
          [](CompletionQueue& queue, double timeout) {
            return queue.wait(std::chrono::nanoseconds(
                static_cast<std::int64_t>(std::min(std::max(timeout, 0.0), 1e9) * 1e9)));
          },
          released)
      .def("nudge", &CompletionQueue::nudge)
      .def("is_closed", &CompletionQueue::is_closed)
      .def("close", &CompletionQueue::close);
}

}  // namespace rueda::bindings
