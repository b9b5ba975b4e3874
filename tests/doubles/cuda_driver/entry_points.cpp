// Devices, streams and events, under the names by which they are looked up.
#include <cstring>
#include <stdexcept>
#include <string>

#include "entry.h"

using rueda::test::context_stack;
using rueda::test::refuse;

extern "C" {

CUresult cuGetErrorName(CUresult code, const char** name) {
  switch (code) {
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_NO_BINARY_FOR_GPU: *name = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    default: *name = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char** text) {
  const char* name = nullptr;
  if (cuGetErrorName(code, &name) != CUDA_SUCCESS) {
    *text = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
  }
  *text = code == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "as the double of CUDA says";
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned) {
  BEGIN_ANYWHERE();
  return state.settings().devices == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  BEGIN_ANYWHERE();
  *version = state.settings().version;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  BEGIN_ANYWHERE();
  *count = state.settings().devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  BEGIN_ANYWHERE();
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  BEGIN_ANYWHERE();
  std::strncpy(name, "Test Double", static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  BEGIN_ANYWHERE();
  const std::string text = "0000:0" + std::to_string(device) + ":00.0";
  std::strncpy(id, text.c_str(), static_cast<std::size_t>(length));
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
  BEGIN_ANYWHERE();
  *bytes = std::size_t{1} << 30;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  BEGIN_ANYWHERE();
  const int capability = state.settings().compute_capability;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      *value = state.settings().memory_pools ? 1 : 0;
      break;
    default: return refuse(state, "an attribute that the double does not know");
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  BEGIN_ANYWHERE();
  return state.retain(device, context);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  BEGIN_ANYWHERE();
  return state.release(device);
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
  BEGIN_ANYWHERE();
  if (state.device_of_context(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack().push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  BEGIN_ANYWHERE();
  if (context_stack().empty()) return refuse(state, "a context was popped that was never pushed");
  *context = context_stack().back();
  context_stack().pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  BEGIN();
  *lowest = 0;
  *highest = -5;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  BEGIN();
  if (flags != CU_STREAM_NON_BLOCKING || priority != -5)
    return refuse(state, "a stream that waits for the default stream, or of low priority");
  *stream = state.open_stream();
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  BEGIN();
  return state.close_stream(stream);
}
CUresult cuStreamQuery(CUstream handle) {
  BEGIN();
  const auto stream = state.stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (state.capture_of(handle)) return refuse(state, "a stream was queried while it was captured");
  if (!stream->queue->is_idle()) return CUDA_ERROR_NOT_READY;
  return state.failure_of(stream->queue->device());
}
CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  BEGIN();
  const auto stream = state.stream(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  *status =
      state.capture_of(handle) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  BEGIN_ANYWHERE();
  std::swap(rueda::test::capture_mode(), *mode);
  return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned) {
  BEGIN();
  const auto event = state.event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->graph() != state.capture_of(stream)) {
    state.misused("a stream waits for an event across the border of a graph");
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  const auto recorded = event->recorded();
  if (!recorded) return CUDA_SUCCESS;  // never, or before in the same graph
  return state.push(stream, [recorded] {
    if (!recorded->wait()) throw std::runtime_error("a stream waited half a minute for an event");
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  BEGIN();
  if (flags != CU_EVENT_DISABLE_TIMING) return refuse(state, "an event that takes time stamps");
  *event = state.open_event();
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
  BEGIN();
  return state.close_event(event);
}
CUresult cuEventRecord(CUevent handle, CUstream stream) {
  BEGIN();
  const auto event = state.event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (state.device_of_stream(stream) != event->device()) {
    state.misused("an event was recorded in a stream of another device");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (auto graph = state.capture_of(stream)) {
    event->record_in_graph(std::move(graph));
    return CUDA_SUCCESS;
  }
  return state.push(stream, [recorded = event->record()] { recorded->set(); });
}
CUresult cuEventQuery(CUevent handle) {
  BEGIN();
  const auto event = state.event(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->graph()) return refuse(state, "asked for an event of a graph");
  if (const CUresult forbidden = state.forbid_while_capturing("asked for an event");
      forbidden != CUDA_SUCCESS) {
    return forbidden;
  }
  const auto recorded = event->recorded();
  if (recorded && !recorded->is_set()) return CUDA_ERROR_NOT_READY;
  return state.failure_of(event->device());
}

}  // extern "C"
