// NCCL's functions for memory.
#include "cuda_driver/driver_calls.h"
#include "nccl_state.h"

using namespace rueda::nccl;
using rueda::test::CommunicatorReference;
using rueda::test::state;

namespace {

Result begin(const char* function, const CommunicatorReference& communicator,
             std::size_t bytes = 0) {
  return state().begin(
      {.function = function, .rank = communicator ? communicator->rank : 0, .count = bytes},
      communicator);
}

Result registered(const char* function, Comm handle, void* memory, std::size_t bytes,
                  void* registration) {
  const CommunicatorReference communicator = state().find(handle);
  if (const Result refused = begin(function, communicator, bytes); refused != success)
    return refused;
  if (rueda_cuda_double()->reach(memory, bytes) == nullptr)
    return state().refuse("registered what is no memory of a device");
  const std::lock_guard lock(communicator->mutex);
  if (!communicator->registrations.emplace(registration, function).second)
    return state().refuse("registered twice");
  return success;
}

// Memory that a running operation uses must stay registered. `registered_by`: as it was.
Result deregistered(const char* function, Comm handle, void* registration,
                    const std::string& registered_by) {
  const CommunicatorReference communicator = state().find(handle);
  if (const Result refused = begin(function, communicator); refused != success) return refused;
  if (communicator->running > 0) return state().refuse("deregistered while operations are running");
  const std::lock_guard lock(communicator->mutex);
  const auto found = communicator->registrations.find(registration);
  if (found == communicator->registrations.end() || found->second != registered_by)
    return state().refuse("deregistered what this communicator was not told of");
  communicator->registrations.erase(found);
  return success;
}

}  // namespace

extern "C" {

Result ncclMemAlloc(void** memory, std::size_t bytes) {
  if (const Result planned = state().planned("ncclMemAlloc"); planned != success) return planned;
  std::uint64_t address = 0;
  if (cuMemAlloc_v2(&address, bytes) != 0) return unhandled_cuda_error;
  *memory = reinterpret_cast<void*>(address);
  return success;
}
Result ncclMemFree(void* memory) {
  if (state().is_registered(memory)) return state().refuse("freed memory that is registered");
  return cuMemFree_v2(reinterpret_cast<std::uint64_t>(memory)) == 0 ? success
                                                                    : unhandled_cuda_error;
}
Result ncclCommRegister(Comm handle, void* memory, std::size_t bytes, void** registration) {
  *registration = memory;
  return registered("ncclCommRegister", handle, memory, bytes, memory);
}
Result ncclCommDeregister(Comm handle, void* registration) {
  return deregistered("ncclCommDeregister", handle, registration, "ncclCommRegister");
}
Result ncclCommWindowRegister(Comm handle, void* memory, std::size_t bytes, Window* window,
                              int flags) {
  if (flags != window_symmetric) return state().refuse("a window that is not symmetric");
  *window = nullptr;
  if (!state().settings().symmetric)
    return begin("ncclCommWindowRegister", state().find(handle), bytes);
  void* const number = rueda::test::window_of(memory);
  if (state().find(handle) && state().find(handle)->meeting->size() == 1)
    return state().refuse("a window of one rank, which gains nothing");
  const Result result = registered("ncclCommWindowRegister", handle, memory, bytes, number);
  if (result != success) return result;
  *window = static_cast<Window>(number);
  return success;
}
Result ncclCommWindowDeregister(Comm handle, Window window) {
  return deregistered("ncclCommWindowDeregister", handle, window, "ncclCommWindowRegister");
}

}  // extern "C"
