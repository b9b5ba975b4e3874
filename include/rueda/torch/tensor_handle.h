// Torch's tensors as Rueda sees them, and the future of an operation on them.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "rueda/rueda.h"
#include "rueda/torch/streams.h"

namespace rueda::libtorch {

// Rueda's element type for torch's; empty if Rueda has none (float8, quantized types).
[[nodiscard]] inline std::optional<DataType> data_type_of(::torch::ScalarType dtype) {
  switch (dtype) {
    case ::torch::kHalf: return DataType::float16;
    case ::torch::kBFloat16: return DataType::bfloat16;
    case ::torch::kFloat: return DataType::float32;
    case ::torch::kDouble: return DataType::float64;
    case ::torch::kChar: return DataType::int8;
    case ::torch::kShort: return DataType::int16;
    case ::torch::kInt: return DataType::int32;
    case ::torch::kLong: return DataType::int64;
    case ::torch::kByte: return DataType::uint8;
    case ::torch::ScalarType::UInt16: return DataType::uint16;
    case ::torch::ScalarType::UInt32: return DataType::uint32;
    case ::torch::ScalarType::UInt64: return DataType::uint64;
    case ::torch::kBool: return DataType::boolean;
    case ::torch::kComplexFloat: return DataType::complex64;
    case ::torch::kComplexDouble: return DataType::complex128;
    default: return std::nullopt;
  }
}

namespace detail {

// Why a tensor cannot take part. Every rank is told, so that none waits for this one.
struct Refusal {
  ErrorCode code;
  std::string why;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

[[nodiscard]] inline std::optional<Refusal> refusal_of(const ::torch::Tensor& tensor) {
  if (!tensor.defined()) return Refusal{ErrorCode::invalid_argument, "the tensor is undefined"};
  if (tensor.layout() != ::torch::kStrided) {
    return Refusal{ErrorCode::unsupported,
                   text("the tensor is sparse (", tensor.layout(),
                        "), which Rueda does not reduce: use to_dense(), or sparse(false) for the "
                        "embedding it comes from")};
  }
  if (tensor.is_nested()) {
    return Refusal{ErrorCode::unsupported,
                   "the tensor is nested, and Rueda takes dense ones: use to_padded_tensor()"};
  }
  if (!tensor.device().is_cpu() && !tensor.device().is_cuda()) {
    return Refusal{ErrorCode::unsupported,
                   text("the tensor is on the device '", tensor.device(),
                        "', and Rueda takes tensors of the CPU and of NVIDIA's GPUs only: use "
                        "cpu()")};
  }
  if (tensor.device().is_cuda() && !knows_streams) {
    return Refusal{ErrorCode::unsupported,
                   text("the tensor is on the device '", tensor.device(),
                        "', and this program was compiled without the headers of CUDA, which this "
                        "version of torch needs for streams: put the folder of "
                        "cuda_runtime_api.h on the include path, or use cpu()")};
  }
  if (!data_type_of(tensor.scalar_type())) {
    return Refusal{ErrorCode::unsupported,
                   text("the dtype ", tensor.scalar_type(), " is not supported")};
  }
  return std::nullopt;
}

// The same for a tensor to be written: torch copies nothing into elements that share memory.
[[nodiscard]] inline std::optional<Refusal> refusal_in_place(const ::torch::Tensor& tensor) {
  if (auto refusal = refusal_of(tensor)) return refusal;
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return Refusal{ErrorCode::invalid_argument,
                   text("elements of the tensor of shape ", tensor.sizes(),
                        " share memory (strides ", tensor.strides(),
                        "), so that it cannot be overwritten: use clone(), or the operation that "
                        "is not in place")};
  }
  return std::nullopt;
}

// Contiguous, without a gradient, and not a lazy conjugate; the tensor itself if it already is.
[[nodiscard]] inline ::torch::Tensor plain(const ::torch::Tensor& tensor) {
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

// Only for plain tensors.
[[nodiscard]] inline TensorView view_of(const ::torch::Tensor& tensor) {
  TensorView view{tensor.data_ptr(), tensor.sizes().vec(), *data_type_of(tensor.scalar_type())};
  if (tensor.is_cuda()) {
    view.device = tensor.device().index();
    view.stream = native_handle(current_stream(tensor.device()));
  }
  return view;
}

// Tensors of operations whose handles were dropped before they were done, or on a GPU before a
// stream waited for them. Never destroyed: at exit, ranks may still access them.
class Abandoned {
 public:
  static Abandoned& all() {
    static auto* const instance = new Abandoned;
    return *instance;
  }

  void add(Handle handle, std::vector<::torch::Tensor> tensors,
           std::optional<StreamOrder> order = {}) {
    const std::lock_guard lock(mutex_);
    operations_.push_back({std::move(handle), std::move(tensors), std::move(order)});
  }

  void release_completed() {
    std::vector<Operation> released;  // outlives the lock: a tensor's deleter may call back here
    const std::lock_guard lock(mutex_);
    const auto first = std::partition(operations_.begin(), operations_.end(), is_needed);
    std::move(first, operations_.end(), std::back_inserter(released));
    operations_.erase(first, operations_.end());
  }

 private:
  struct Operation {
    Handle handle;
    std::vector<::torch::Tensor> tensors;
    std::optional<StreamOrder> order;  // on a GPU
  };

  static bool is_needed(const Operation& each) {
    return !each.handle.done() || (each.order && !is_left_to_the_gpu(each));
  }

  // Whether torch ensures that the memory is not reused before the GPU has finished.
  static bool is_left_to_the_gpu(const Operation& each) {
    try {
      const c10::Stream stream = each.order->wait_aside(each.handle);
      for (const ::torch::Tensor& tensor : each.tensors) {
        if (tensor.defined() && tensor.is_cuda()) tensor.record_stream(stream);
      }
    } catch (const Error& error) {
      return is_never_begun(error.code());  // otherwise nobody knows when the GPU has finished
    } catch (const std::exception&) {
      return false;  // an error of torch's: nobody knows here either
    }
    return true;
  }

  [[nodiscard]] static bool is_never_begun(ErrorCode code) {
    return code != ErrorCode::peer_lost && code != ErrorCode::timeout &&
           code != ErrorCode::transport && code != ErrorCode::internal;
  }

  std::mutex mutex_;
  std::vector<Operation> operations_;
};

// One operation and its tensors.
class Pending {
 public:
  // The operation touches `read` and `written`; `written` is copied into `result` if the two do not
  // share memory. Without `written`, the result is in the handle's output, with the dtype of
  // `read`. `residual` is the error feedback's, which the operation reads and writes.
  Pending(Handle handle, ::torch::Tensor read, ::torch::Tensor written, ::torch::Tensor result,
          ::torch::Tensor residual)
      : handle_(std::move(handle)),
        read_(std::move(read)),
        written_(std::move(written)),
        result_(std::move(result)),
        residual_(std::move(residual)) {
    if (read_.defined() && read_.is_cuda()) order_.emplace(read_.device());
  }
  ~Pending() {
    if (handle_.done() && (!order_ || taken_)) return;
    Abandoned::all().add(std::move(handle_), {read_, written_, residual_}, std::move(order_));
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  [[nodiscard]] const Handle& handle() const { return handle_; }

  // Call once the operation is done. On a GPU, later work of the current stream sees the result.
  ::torch::Tensor result() {
    const std::lock_guard lock(mutex_);
    if (taken_) {
      if (order_) order_->join();
      return result_;
    }
    if (order_) {
      order_->settle(handle_, [this] { take(); });
    } else {
      take();
    }
    taken_ = true;
    read_.reset();
    written_.reset();
    residual_.reset();
    return result_;
  }

 private:
  void take() {
    const ::torch::NoGradGuard no_grad;
    if (!written_.defined()) {
      result_ = from_output();
    } else if (!result_.is_alias_of(written_)) {
      result_.copy_(written_);
    }
  }

  [[nodiscard]] ::torch::Tensor from_output() const {
    const Output& output = handle_.output();
    const auto options = ::torch::TensorOptions().dtype(read_.scalar_type()).device(read_.device());
    if (element_count(output.shape) == 0) return ::torch::empty(output.shape, options);
    const auto owner = output.data;
    const auto lent = ::torch::from_blob(owner.get(), output.shape, [owner](void*) {}, options);
    if (!read_.is_cuda()) return lent;
    // Only torch's allocator knows on which streams the program uses the result.
    auto result = lent.clone();
    handle_.release_output(native_handle(current_stream(read_.device())));
    return result;
  }

  Handle handle_;
  ::torch::Tensor read_;
  ::torch::Tensor written_;
  ::torch::Tensor result_;
  ::torch::Tensor residual_;
  std::optional<StreamOrder> order_;  // on a GPU
  std::mutex mutex_;
  bool taken_ = false;
};

}  // namespace detail

// The future of one operation on a tensor. It keeps its tensors alive; dropping every copy of it
// does not cancel the operation. Copies refer to the same operation. Until it is done, its tensors
// must not be written, resized or given other memory.
//
// On a GPU, an operation is done, in the sense of this class, once all its work has been enqueued
// there: the host does not wait for the GPU. wait() makes the current stream wait for the result,
// and also the one that was current at submission; what either enqueues afterwards may write the
// tensors.
class TensorHandle {
 public:
  explicit TensorHandle(std::shared_ptr<detail::Pending> pending) : pending_(std::move(pending)) {}

  // Completed, successfully or with an error.
  [[nodiscard]] bool done() const { return pending_->handle().done(); }
  // Blocks until done, then returns the result; throws the operation's error. For an in-place
  // operation on a tensor that is not contiguous, this call writes the tensor.
  ::torch::Tensor wait() const {
    pending_->handle().wait();
    return pending_->result();
  }
  // Like wait(), but gives up after `timeout`: false if not done by then.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const {
    if (!pending_->handle().wait_for(timeout)) return false;
    pending_->result();
    return true;
  }
  // After an alltoall: the rows received from each rank of the set. Waits; throws like wait().
  [[nodiscard]] const std::vector<std::int64_t>& received_splits() const {
    return pending_->handle().output().received_splits;
  }

 private:
  std::shared_ptr<detail::Pending> pending_;
};

namespace detail {

[[nodiscard]] inline TensorHandle pending(Handle handle, ::torch::Tensor read = {},
                                          ::torch::Tensor written = {}, ::torch::Tensor result = {},
                                          ::torch::Tensor residual = {}) {
  Abandoned::all().release_completed();
  return TensorHandle(std::make_shared<Pending>(std::move(handle), std::move(read),
                                                std::move(written), std::move(result),
                                                std::move(residual)));
}

[[nodiscard]] inline TensorHandle refused(const Refusal& refusal, const std::string& name,
                                          ProcessSet set) {
  return pending(refuse(name, set, refusal.why, refusal.code));
}

// What an in-place operation works on: the tensor's own memory, or a copy that wait() writes back.
[[nodiscard]] inline ::torch::Tensor working_tensor(const ::torch::Tensor& tensor) {
  // The tensor will no longer be what autograd has saved.
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  return plain(tensor);
}

}  // namespace detail
}  // namespace rueda::libtorch
