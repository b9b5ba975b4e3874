#include "persistent.h"

#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "api/bindings.h"
#include "collectives.h"
#include "gil.h"
#include "handle.h"

namespace py = pybind11;

namespace rueda::bindings {

namespace {

class PersistentAllreduce {
 public:
  PersistentAllreduce(const TensorView& input, void* output, const AllreduceOptions& options) {
    const BegunAllreduce begun = [&] {
      const GilReleased released;
      return begin_persistent_allreduce(input, output, options);
    }();
    bindings::wait(begun.agreement, std::nullopt);
    const GilReleased released;
    run_ = begun.finish();
  }
  // May wait for other ranks.
  ~PersistentAllreduce() {
    const GilReleased released;
    run_.reset();
  }
  PersistentAllreduce(const PersistentAllreduce&) = delete;
  PersistentAllreduce& operator=(const PersistentAllreduce&) = delete;

  // If a signal handler raises, the next wait does what is left.
  void start(std::uintptr_t stream) {
    run_->require_this_process();
    {
      const GilReleased released;
      run_->begin(pointer(stream));
    }
    until_done([&](Time deadline) { return run_->start_until(deadline); });
  }
  bool done() {
    run_->require_this_process();
    const GilReleased released;
    return run_->done();
  }
  // If a signal handler raises, the run continues.
  void wait() {
    run_->require_this_process();
    until_done([&](Time deadline) { return run_->wait_until(deadline); });
  }

 private:
  template <class GoOn>
  static void until_done(const GoOn& go_on) {
    for (;;) {
      {
        const GilReleased released;
        if (go_on(end_of_sleep(std::nullopt))) return;
      }
      raise_signals();
    }
  }

  OwnedPersistentRun run_;
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
