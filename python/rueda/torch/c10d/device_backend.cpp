// A process group of Rueda's, which is written in Python, as the backend of one kind of device.
//
// torch takes a process group in Python for all devices or none; what it takes for one device is a
// c10d::Backend, which Python cannot derive from. This one hands every call on to the process group
// (process_group.py), so that the collectives exist once. device_backend.py compiles it against the
// torch that is installed, where a program asks for a backend per device.
//
// Some functions became virtual in later versions of torch than the oldest that this compiles
// against: they are declared `virtual` and not `override`.

#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace rueda::c10d_backend {

namespace py = pybind11;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using Milliseconds = std::chrono::milliseconds;

// A reference to an object in Python, that may be dropped by a thread without the GIL.
class Held {
 public:
  explicit Held(py::object object) : object_(std::move(object)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    const py::gil_scoped_acquire gil;
    object_ = py::object();
  }

  // What the function of that name returns, as a T, which is nothing of Python's.
  template <typename T = void, typename... Arguments>
  T call(const char* name, const Arguments&... arguments) const {
    const py::gil_scoped_acquire gil;
    const py::object returned = call_with_gil(name, arguments...);
    if constexpr (!std::is_void_v<T>) return returned.cast<T>();
  }

  template <typename... Arguments>
  py::object call_with_gil(const char* name, const Arguments&... arguments) const {
    return object_.attr(name)(py::cast(arguments)...);
  }

  const py::object& object() const { return object_; }

 private:
  py::object object_;
};

// What throws an exception of Python's in C++; nothing for None.
std::exception_ptr exception_of(const py::object& error) {
  if (error.is_none()) return nullptr;
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  return std::make_exception_ptr(py::error_already_set());
}

// An operation on its way. torch keeps no reference to the object in Python, so this does.
class ForwardedWork : public c10d::Work {
 public:
  explicit ForwardedWork(py::object work) : work_(std::move(work)) {}

  bool isCompleted() override { return work_.call<bool>("is_completed"); }
  bool isSuccess() const override { return work_.call<bool>("is_success"); }
  int sourceRank() const override { return work_.call<int>("source_rank"); }
  Tensors result() override { return work_.call<Tensors>("result"); }
  void synchronize() override { wait(kNoTimeout); }

  std::exception_ptr exception() const override {
    const py::gil_scoped_acquire gil;
    return exception_of(work_.call_with_gil("exception"));
  }

  bool wait(Milliseconds timeout) override { return work_.call<bool>("wait", timeout); }

  // Not the future of the object in Python, which has only the text of the operation's error.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const py::gil_scoped_acquire gil;
    const py::object work = work_.object();
    // On GPUs, completed with what the streams that are current then have enqueued: those of the
    // callback, which the future of the object in Python has made wait for the results.
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        work.attr("devices")().cast<std::vector<c10::Device>>());
    const auto complete = [future, work](const py::object&) {
      const py::object failure = work.attr("exception")();
      const std::exception_ptr error = exception_of(failure);
      const Tensors tensors = error ? Tensors() : work.attr("result")().cast<Tensors>();
      // What waits for the future may need the GIL in another thread.
      const py::gil_scoped_release released;
      if (error) {
        future->setError(error);
      } else {
        future->markCompleted(tensors);
      }
    };
    work.attr("get_future")().attr("add_done_callback")(py::cpp_function(complete));
    return future;
  }

 private:
  Held work_;
};

class ForwardingBackend : public c10d::Backend {
 public:
  ForwardingBackend(py::object group, int rank, int size, Milliseconds timeout)
      : Backend(rank, size), group_(std::move(group)), timeout_(timeout) {}

  const std::string getBackendName() const override { return "rueda"; }

  // --- Its life

  virtual c10::intrusive_ptr<Options> getBackendOptions() {
    return c10::make_intrusive<Options>("rueda", timeout_);
  }
  virtual void setTimeout(Milliseconds timeout) {
    timeout_ = timeout;
    group_.call("set_timeout", timeout);
  }
  // Which torch compares between ranks where TORCH_DISTRIBUTED_DEBUG is DETAIL.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return collectives_; }
  virtual void shutdown() { group_.call("shutdown"); }
  virtual void abort() { group_.call("abort"); }

  using Returned = c10::intrusive_ptr<c10d::Work>;

  // What older versions begin in a block.
  void startCoalescing() override { group_.call("_start_coalescing", c10::Device(c10::kCPU)); }
  Returned endCoalescing() override { return forward("_end_coalescing", c10::Device(c10::kCPU)); }

  // --- Collectives

  Returned broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return begin("broadcast", tensors, options);
  }
  Returned allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return begin("allreduce", tensors, options);
  }
  Returned allreduce_coalesced(Tensors& tensors,
                               const c10d::AllreduceCoalescedOptions& options) override {
    return begin("allreduce_coalesced", tensors, options);
  }
  Returned reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return begin("reduce", tensors, options);
  }
  Returned allgather(TensorLists& outputs, Tensors& inputs,
                     const c10d::AllgatherOptions& options) override {
    return begin("allgather", outputs, inputs, options);
  }
  Returned _allgather_base(at::Tensor& output, at::Tensor& input,
                           const c10d::AllgatherOptions& options) override {
    return begin("all_gather_single", output, input, options);
  }
  Returned allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                               const c10d::AllgatherOptions& options) override {
    return begin("allgather_coalesced", outputs, inputs, options);
  }
  Returned allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) override {
    return begin("all_gather_single_coalesced", outputs, inputs, options);
  }
  Returned gather(TensorLists& outputs, Tensors& inputs,
                  const c10d::GatherOptions& options) override {
    return begin("gather", outputs, inputs, options);
  }
  Returned scatter(Tensors& outputs, TensorLists& inputs,
                   const c10d::ScatterOptions& options) override {
    return begin("scatter", outputs, inputs, options);
  }
  Returned reduce_scatter(Tensors& outputs, TensorLists& inputs,
                          const c10d::ReduceScatterOptions& options) override {
    return begin("reduce_scatter", outputs, inputs, options);
  }
  Returned _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    return begin("reduce_scatter_single", output, input, options);
  }
  Returned reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                           const c10d::ReduceScatterOptions& options) override {
    return begin("reduce_scatter_single_coalesced", outputs, inputs, options);
  }
  Returned alltoall(Tensors& outputs, Tensors& inputs,
                    const c10d::AllToAllOptions& options) override {
    return begin("alltoall", outputs, inputs, options);
  }
  Returned alltoall_base(at::Tensor& output, at::Tensor& input,
                         std::vector<std::int64_t>& output_splits,
                         std::vector<std::int64_t>& input_splits,
                         const c10d::AllToAllOptions& options) override {
    return begin("all_to_all_single", output, input, output_splits, input_splits, options);
  }
  Returned barrier(const c10d::BarrierOptions& options) override {
    return begin("barrier", options);
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override {
    group_.call("monitored_barrier", options.timeout, wait_all_ranks);
  }

  // --- Messages

  Returned send(Tensors& tensors, int target, int tag) override {
    return forward("send", tensors, target, tag);
  }
  Returned recv(Tensors& tensors, int source, int tag) override {
    return forward("recv", tensors, source, tag);
  }
  Returned recvAnysource(Tensors& tensors, int tag) override {
    return forward("recv_anysource", tensors, tag);
  }

 private:
  // A collective.
  template <typename... Arguments>
  Returned begin(const char* name, const Arguments&... arguments) {
    ++collectives_;
    return forward(name, arguments...);
  }

  template <typename... Arguments>
  Returned forward(const char* name, const Arguments&... arguments) const {
    const py::gil_scoped_acquire gil;
    return c10::make_intrusive<ForwardedWork>(group_.call_with_gil(name, arguments...));
  }

  Held group_;
  Milliseconds timeout_;
  std::atomic<std::uint64_t> collectives_ = 0;  // begun so far
};

}  // namespace rueda::c10d_backend

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def(
      "backend_of",
      [](pybind11::object group, int rank, int size,
         std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<rueda::c10d_backend::ForwardingBackend>(std::move(group), rank,
                                                                           size, timeout);
      },
      pybind11::arg("group"), pybind11::arg("rank"), pybind11::arg("size"),
      pybind11::arg("timeout"));
}
