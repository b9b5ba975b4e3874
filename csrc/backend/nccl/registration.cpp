// Memory that NCCL is told about beforehand.
#include <utility>

#include "backend/nccl/communicator.h"

namespace rueda {

Expected<void*> NcclCommunicator::register_buffer(std::byte* memory, std::size_t bytes) {
  void* handle = nullptr;
  if (library_.functions().comm_register == nullptr) return handle;
  if (Status status = enqueue("ncclCommRegister",
                              [&](const nccl::Functions& functions) {
                                return functions.comm_register(handle_, memory, bytes, &handle);
                              });
      !status.ok()) {
    return status;
  }
  return handle;
}

Status NcclCommunicator::deregister_buffer(void* handle) {
  if (handle == nullptr) return {};
  return enqueue("ncclCommDeregister", [&](const nccl::Functions& functions) {
    return functions.comm_deregister(handle_, handle);
  });
}

Expected<const nccl::Window*> NcclCommunicator::register_window(std::byte* memory,
                                                                std::size_t bytes) {
  const nccl::Window* const none = nullptr;
  if (library_.functions().window_register == nullptr) return none;
  nccl::Window& window = written_->windows.emplace_back(nullptr);
  if (Status status = enqueue("ncclCommWindowRegister",
                              [&](const nccl::Functions& functions) {
                                return functions.window_register(handle_, memory, bytes, &window,
                                                                 nccl::window_symmetric);
                              });
      !status.ok()) {
    return status;
  }
  return &std::as_const(window);
}

Status NcclCommunicator::deregister_window(nccl::Window window) {
  if (window == nullptr) return {};
  return enqueue("ncclCommWindowDeregister", [&](const nccl::Functions& functions) {
    return functions.window_deregister(handle_, window);
  });
}

}  // namespace rueda
