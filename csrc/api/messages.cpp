#include "api/current_runtime.h"
#include "api/known_values.h"
#include "core/strings.h"
#include "plan/request.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

Handle submit(bool is_send, const TensorView& tensor, int peer, const MessageOptions& options) {
  if (tensor.device != host_device) {
    throw UnsupportedError("send and recv take CPU tensors only");
  }
  const auto refuse = [is_send](const auto&... why) {
    throw InvalidArgumentError(str(is_send ? "send: " : "recv: ", why...));
  };
  if (const Status known = check_known(tensor.dtype); !known.ok()) refuse(known.message());
  const std::string flaw = flaw_of(tensor.shape, tensor.dtype);
  if (!flaw.empty()) refuse(flaw);
  if (tensor.data == nullptr && tensor.count() > 0) {
    refuse("the address of the tensor of shape ", to_string(tensor.shape), " is null");
  }
  const auto [runtime, set_id] = runtime_of(options.process_set);
  MessageRequest request;
  request.is_send = is_send;
  request.set_id = set_id;
  request.peer = peer;
  request.tag = options.tag;
  request.may_wait_long = options.may_wait_long;
  request.dtype = tensor.dtype;
  request.count = tensor.count();
  request.data = static_cast<std::byte*>(tensor.data);
  return runtime->submit_message(std::move(request));
}

}  // namespace

Handle send(const TensorView& tensor, int target, const MessageOptions& options) {
  if (target < 0) throw InvalidArgumentError("send: there is no rank " + std::to_string(target));
  return submit(true, tensor, target, options);
}

Handle recv(const TensorView& tensor, int source, const MessageOptions& options) {
  if (source < any_source) {
    throw InvalidArgumentError("recv: there is no rank " + std::to_string(source));
  }
  return submit(false, tensor, source, options);
}

}  // namespace rueda
