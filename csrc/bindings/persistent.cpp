#include "persistent.h"

#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "api/current_engine.h"
#include "api/persistent_run.h"
#include "collectives.h"
#include "handle.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

// How long nobody looks for signals.
constexpr auto longest_sleep = std::chrono::seconds(1);

void raise_signals() {
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

class PersistentAllreduce {
 public:
  PersistentAllreduce(const TensorView& input, void* output, const AllreduceOptions& options) {
    auto agreement = [&] {
      const py::gil_scoped_release released;
      return PersistentAgreement(current_engine(), input, output, options);
    }();
    while (!agreement.handle().done()) {
      {
        const py::gil_scoped_release released;
        sleep_once(agreement.handle(), std::nullopt);
      }
      raise_signals();
    }
    const py::gil_scoped_release released;
    run_ = agreement.make_run();
  }
  // May wait for other ranks.
  ~PersistentAllreduce() {
    const py::gil_scoped_release released;
    run_.reset();
  }
  PersistentAllreduce(const PersistentAllreduce&) = delete;
  PersistentAllreduce& operator=(const PersistentAllreduce&) = delete;

  // What a signal handler that raises has left undone is done by the next wait.
  void start(std::uintptr_t stream) {
    {
      const py::gil_scoped_release released;
      run_->begin(pointer(stream));
    }
    until_done([&](Time deadline) { return run_->start_until(deadline); });
  }
  bool done() {
    const py::gil_scoped_release released;
    return run_->done();
  }
  // The run goes on where a signal handler raises.
  void wait() {
    until_done([&](Time deadline) { return run_->wait_until(deadline); });
  }

 private:
  template <class GoOn>
  static void until_done(const GoOn& go_on) {
    for (;;) {
      {
        const py::gil_scoped_release released;
        if (go_on(Clock::now() + longest_sleep)) return;
      }
      raise_signals();
    }
  }

  std::unique_ptr<PersistentRun> run_;
};

}  // namespace

void bind_persistent(py::module_& module) {
  py::class_<PersistentAllreduce>(module, "PersistentAllreduce")
      .def(py::init([](std::uintptr_t input, std::uintptr_t output, Shape shape, int dtype,
                       const std::string& name, int op, double prescale, double postscale, int set,
                       int wire, int device, std::uintptr_t stream) {
        return std::make_unique<PersistentAllreduce>(
            view(input, std::move(shape), dtype, device, stream), pointer(output),
            AllreduceOptions{.name = name,
                             .op = reduce_op(op),
                             .prescale_factor = prescale,
                             .postscale_factor = postscale,
                             .process_set = {set},
                             .wire_dtype = wire_type(wire)});
      }))
      .def("start", &PersistentAllreduce::start)
      .def("done", &PersistentAllreduce::done)
      .def("wait", &PersistentAllreduce::wait);
}

}  // namespace rueda::bindings
