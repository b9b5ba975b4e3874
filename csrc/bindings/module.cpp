// The extension module rueda._native. It depends on neither NumPy nor torch;
// python/rueda/_native.pyi lists its contents.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/eventfd.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/bindings.h"
#include "blocking.h"
#include "collectives.h"
#include "core/available_memory.h"
#include "core/interruption.h"
#include "core/memory_release.h"
#include "core/options.h"
#include "core/shared_library.h"
#include "core/unknown_variables.h"
#include "core/whereabouts.h"
#include "errors.h"
#include "gil.h"
#include "handle.h"
#include "persistent.h"
#include "row_sums.h"
#include "rueda/rueda.h"
#include "tables.h"
#include "text.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

std::string_view name_of(OptionType type) {
  switch (type) {
    case OptionType::text: return "text";
    case OptionType::choice: return "choice";
    case OptionType::bytes: return "bytes";
    case OptionType::count: return "count";
    case OptionType::seconds: return "seconds";
  }
  return "text";
}

// One dictionary per option, for the launcher's flags and the documentation.
py::list describe_options() {
  py::list rows;
  for (const OptionSpec& spec : option_table()) {
    py::dict row;
    row["name"] = spec.name;
    row["environment"] = spec.environment;
    row["horovod"] = spec.horovod;
    row["type"] = name_of(spec.type);
    row["choices"] = spec.choices;
    row["must_agree"] = spec.must_agree;
    row["description"] = spec.description;
    row["default"] = option_text(spec, Options{});
    rows.append(std::move(row));
  }
  return rows;
}

py::list describe_data_types() {
  py::list rows;
  for (const DataTypeInfo& row : data_types) rows.append(py::make_tuple(row.name, row.size));
  return rows;
}

using GivenOptions = std::map<std::string, FileSystemText>;

py::dict effective_options() {
  py::dict all;
  for (const auto& [name, value] : rueda::options()) all[py::str(name)] = file_system_text(value);
  return all;
}

// Ctrl-C ends it: this rank then gives up forming the world, as if it had failed.
void init_interruptibly(const GivenOptions& given) {
  interruptibly([&] { init(bytes_of(given)); });
}

// Ctrl-C ends the wait; the world is formed all the same.
py::tuple recover_interruptibly(double timeout, bool break_whole) {
  const Recovery recovery = interruptibly([&] { return recover(timeout, break_whole); });
  py::list lost;
  for (const Recovery::Lost& each : recovery.lost) {
    lost.append(py::make_tuple(each.rank, each.host, each.process_id, each.cause,
                               std::string(name_of(each.reason))));
  }
  return py::make_tuple(recovery.epoch, recovery.previous_ranks, lost, recovery.interrupted);
}

// Like init_interruptibly().
int open_world_interruptibly(int rank, int size, const std::string& address,
                             const std::string& secret, int listener, const GivenOptions& given) {
  return interruptibly(
      [&] { return open_world({rank, size, address, secret, listener, bytes_of(given)}).id; });
}

// Like init_interruptibly(); an exception from `look` also ends it. Returns the number of the
// world, and each rank's rank in the previous world.
py::tuple enter_world_interruptibly(int rank, int size, const std::string& address,
                                    const std::string& secret, int listener,
                                    const GivenOptions& given, const py::object& look) {
  const Recovery entered = [&] {
    const GilReleased released;
    const Interruptible interruptible([&look] {
      throw_if_rank_is_lost();
      const GilTaken gil;
      raise_signals();
      if (!look.is_none()) look();
    });
    return enter_world({rank, size, address, secret, listener, bytes_of(given)});
  }();
  return py::make_tuple(entered.epoch, entered.previous_ranks);
}

// If a signal handler raises, the change of the sets continues.
int add_set(std::vector<int> ranks) {
  const Handle handle = [&] {
    const GilReleased released;
    return begin_adding_process_set(std::move(ranks));
  }();
  wait(handle, std::nullopt);
  return added_process_set(handle).id;
}

void remove_set(int set) {
  const Handle handle = [&] {
    const GilReleased released;
    return begin_removing_process_set({set});
  }();
  wait(handle, std::nullopt);
  handle.wait();
}

// Also called by Rueda's threads, and until the interpreter ends: never destroyed.
void release_memory_by(py::object call) {
  const auto* const kept = new py::object(std::move(call));
  set_memory_release([kept](int device) {
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire acquired;
    try {
      (*kept)(device);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("releasing memory of a GPU for Rueda");
    }
  });
}

void bind_life(py::module_& module) {
  const py::call_guard<GilReleased> released;
  module.def("init", &init_interruptibly);
  module.def("shutdown", &shutdown, released);
  module.def("recover", &recover_interruptibly, py::arg("timeout"), py::arg("break_whole"));
  module.def("host_identity", &host_identity);
  module.def("set_memory_release", &release_memory_by);
  module.def("own_address", &own_address, py::arg("interface"));
  module.def("is_initialized", &is_initialized);
  module.def("abort", &abort, released);
  module.def("rank", &rank);
  module.def("size", &size);
  module.def("local_rank", &local_rank);
  module.def("local_size", &local_size);
  module.def("cross_rank", &cross_rank);
  module.def("cross_size", &cross_size);
  module.def("is_homogeneous", &is_homogeneous);
}

// `event`: an eventfd that is written to when the engine asks where the application is.
void bind_whereabouts(py::module_& module) {
  module.def(
      "guide_whereabouts",
      [](int event, std::string excuse) {
        whereabouts().register_guide([event] { static_cast<void>(eventfd_write(event, 1)); },
                                     std::move(excuse));
      },
      py::arg("event"), py::arg("excuse"));
  module.def("newest_whereabouts_question", [] { return whereabouts().newest_question(); });
  module.def(
      "answer_whereabouts",
      [](std::uint64_t question, std::string text) {
        whereabouts().answer(question, std::move(text));
      },
      py::arg("question"), py::arg("text"));
}

void bind_worlds(py::module_& module) {
  module.def("open_world", &open_world_interruptibly, py::arg("rank"), py::arg("size"),
             py::arg("address"), py::arg("secret"), py::arg("listener"), py::arg("options"));
  module.def("enter_world", &enter_world_interruptibly, py::arg("rank"), py::arg("size"),
             py::arg("address"), py::arg("secret"), py::arg("listener"), py::arg("options"),
             py::arg("look") = py::none());
  module.def(
      "close_world", [](int set, const std::string& cause) { close_world({set}, cause); },
      py::arg("set"), py::arg("cause"), py::call_guard<GilReleased>());
}

// Fingerprints of pieces of memory (address and length), signed like torch's integers.
std::vector<std::int64_t> fingerprints(
    const std::vector<std::pair<std::uintptr_t, std::size_t>>& pieces) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(pieces.size());
  for (const auto& [address, bytes] : pieces) {
    const auto* const begin = reinterpret_cast<const std::byte*>(address);
    numbers.push_back(static_cast<std::int64_t>(fingerprint({begin, bytes})));
  }
  return numbers;
}

void bind_process_sets(py::module_& module) {
  const py::call_guard<GilReleased> released;
  module.def("add_process_set", &add_set);
  module.def("remove_process_set", &remove_set);
  module.def(
      "create_group",
      [](int number, const std::vector<int>& ranks) { return create_group(number, ranks).id; },
      released);
  module.def("destroy_group", [](int set) { destroy_group({set}); }, released);
  module.def("group_number", &group_number);
  module.def("group_slot", [](int set) { return group_slot({set}); });
  module.attr("first_formed_set") = first_formed_set;
  module.attr("process_set_limit") = process_set_limit;
  module.def("ranks_of", [](int set) { return ranks_of({set}); }, released);
  module.def("rank_in", [](int set) { return rank_in({set}); }, released);
  module.def("process_set_ids", &process_set_ids, released);
  module.def("is_world_over", &is_world_over, released);
  module.def("throw_if_rank_is_lost", &throw_if_rank_is_lost, released);
  module.def("throw_if_rank_has_left", &throw_if_rank_has_left, released);
  module.def("end_process_sets", &end_process_sets, released);
  module.def("set_timeout", [](int set, double seconds) { set_timeout({set}, seconds); }, released);
  module.def(
      "extend_timeout", [](int set, double seconds) { extend_timeout({set}, seconds); }, released);
  module.def(
      "was_added_as",
      [](int set, std::vector<int> ranks) { return was_added_as({set}, std::move(ranks)); },
      released);
}

// Read here, in every process that imports this module, rather than passed in a variable, which
// children with another Python would inherit.
void tell_python_prefix() {
  const py::object prefix = py::module_::import("sys").attr("prefix");
  set_python_prefix(py::module_::import("os").attr("fsencode")(prefix).cast<std::string>());
}

}  // namespace

}  // namespace rueda::bindings

PYBIND11_MODULE(_native, module) {
  using namespace rueda::bindings;
  module.doc() = "Rueda's C++ API with pointers as integers; use the package rueda instead.";
  register_errors();
  tell_python_prefix();
  bind_memory(module);
  bind_handle(module);
  bind_life(module);
  bind_worlds(module);
  bind_whereabouts(module);
  bind_process_sets(module);
  bind_collectives(module);
  bind_blocking(module);
  bind_persistent(module);
  bind_tables(module);
  bind_row_sums(module);
  module.def("metrics", &rueda::metrics);
  module.def("count_filled_gradient", &rueda::count_filled_gradient);
  module.def("has_direct_access", &rueda::has_direct_access);
  module.def("available_memory", &rueda::available_memory);
  module.def("start_timeline", [](const FileSystemText& path, bool as_horovod, bool mark_cycles) {
    const auto format = as_horovod ? rueda::TimelineFormat::horovod : rueda::TimelineFormat::rueda;
    rueda::start_timeline(path.bytes, format, mark_cycles);
  });
  module.def("stop_timeline", &rueda::stop_timeline);
  module.def("write_flight_record", &rueda::write_flight_record);
  module.def("choose_algorithm", [](std::int64_t bytes) {
    const rueda::AlgorithmChoice choice = rueda::choose_algorithm(bytes);
    return py::make_tuple(choice.algorithm, choice.registered, choice.predicted_us,
                          choice.predicted_registered_us);
  });
  module.def("host_links", [] {
    py::list links;
    for (const rueda::HostLink& link : rueda::host_links()) {
      links.append(
          py::make_tuple(link.transport, link.latency_us, link.gbit_per_second, link.obstacle));
    }
    return links;
  });
  module.def("options", &effective_options);
  module.def("fingerprints", &fingerprints, py::call_guard<GilReleased>());
  // Whether GPUs are supported, what compiled the kernels, and the version of NCCL.
  module.def("gpu_support", [] {
    const rueda::GpuSupport support = rueda::gpu_support(rueda::Options{});
    return py::make_tuple(support.built, support.kernels, support.nccl);
  });
  module.def("option_table", &describe_options);
  module.def("unknown_variables",
             [](const std::vector<std::string>& names) { return rueda::unknown_variables(names); });
  module.def("data_types", &describe_data_types);
  module.attr("reduce_ops") =
      std::vector<std::string>(rueda::reduce_op_names.begin(), rueda::reduce_op_names.end());
}
