// The CUDA driver functions that Rueda calls. The only header that needs cuda.h; included only by
// sources of this layer, which are not built without cuda.h.
#pragma once

#include <cuda.h>

// cuda.h uses macros to rename functions whose semantics have changed (cuMemAlloc_v2, for example).
// The symbol looked up must match the declaration, so the names go through the preprocessor.
#define RUEDA_DRIVER_FUNCTIONS(USE)                             \
  USE(get_error_name, cuGetErrorName)                           \
  USE(get_error_string, cuGetErrorString)                       \
  USE(init, cuInit)                                             \
  USE(driver_version, cuDriverGetVersion)                       \
  USE(device_count, cuDeviceGetCount)                           \
  USE(device_get, cuDeviceGet)                                  \
  USE(device_name, cuDeviceGetName)                             \
  USE(device_attribute, cuDeviceGetAttribute)                   \
  USE(device_total_memory, cuDeviceTotalMem)                    \
  USE(device_pci_bus_id, cuDeviceGetPCIBusId)                   \
  USE(primary_context_retain, cuDevicePrimaryCtxRetain)         \
  USE(primary_context_release, cuDevicePrimaryCtxRelease)       \
  USE(context_push, cuCtxPushCurrent)                           \
  USE(context_pop, cuCtxPopCurrent)                             \
  USE(context_priority_range, cuCtxGetStreamPriorityRange)      \
  USE(stream_create, cuStreamCreateWithPriority)                \
  USE(stream_destroy, cuStreamDestroy)                          \
  USE(stream_query, cuStreamQuery)                              \
  USE(stream_wait_event, cuStreamWaitEvent)                     \
  USE(stream_is_capturing, cuStreamIsCapturing)                 \
  USE(exchange_capture_mode, cuThreadExchangeStreamCaptureMode) \
  USE(event_create, cuEventCreate)                              \
  USE(event_destroy, cuEventDestroy)                            \
  USE(event_record, cuEventRecord)                              \
  USE(event_query, cuEventQuery)                                \
  USE(memory_allocate, cuMemAlloc)                              \
  USE(memory_free, cuMemFree)                                   \
  USE(pool_create, cuMemPoolCreate)                             \
  USE(pool_destroy, cuMemPoolDestroy)                           \
  USE(pool_set_attribute, cuMemPoolSetAttribute)                \
  USE(pool_allocate, cuMemAllocFromPoolAsync)                   \
  USE(pool_free, cuMemFreeAsync)                                \
  USE(host_allocate, cuMemHostAlloc)                            \
  USE(host_free, cuMemFreeHost)                                 \
  USE(host_register, cuMemHostRegister)                         \
  USE(host_unregister, cuMemHostUnregister)                     \
  USE(copy_to_device, cuMemcpyHtoDAsync)                        \
  USE(copy_to_host, cuMemcpyDtoHAsync)                          \
  USE(copy_on_device, cuMemcpyDtoDAsync)                        \
  USE(fill_bytes, cuMemsetD8Async)                              \
  USE(module_load, cuModuleLoadData)                            \
  USE(module_unload, cuModuleUnload)                            \
  USE(module_function, cuModuleGetFunction)                     \
  USE(launch_kernel, cuLaunchKernel)

namespace rueda {

struct DriverTable {
#define RUEDA_DECLARE(member, function) decltype(&::function) member = nullptr;
  RUEDA_DRIVER_FUNCTIONS(RUEDA_DECLARE)
#undef RUEDA_DECLARE
};

}  // namespace rueda
