// Memory that is allocated and freed in the order of streams, under the names by which that is
// looked up. Addresses are never given out twice: whoever comes too late is found out.
#include <cuda.h>

#include "entry.h"

using rueda::test::DriverState;
using rueda::test::refuse;

namespace {

std::uint64_t number_of(CUmemoryPool pool) {
  return reinterpret_cast<std::uintptr_t>(pool);
}

}  // namespace

extern "C" {

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  BEGIN();
  if (!state.settings().memory_pools) return CUDA_ERROR_NOT_SUPPORTED;
  if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return refuse(state, "a pool of memory that is no device's");
  }
  *pool = state.open_pool(properties->location.id);
  return CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  BEGIN();
  return state.close_pool(pool) ? CUDA_SUCCESS : refuse(state, "a pool that does not exist");
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  BEGIN();
  if (state.device_of_pool(pool) < 0) return refuse(state, "a pool that does not exist");
  if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    if (*static_cast<int*>(value) != 0) return refuse(state, "a pool that makes streams wait");
    state.keep_pool_from_ordering_streams(pool);
    return CUDA_SUCCESS;
  }
  if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    return refuse(state, "an attribute of a pool that the double does not know");
  return *static_cast<cuuint64_t*>(value) > 0 ? CUDA_SUCCESS
                                              : refuse(state, "a pool that keeps nothing");
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  BEGIN();
  const int device = state.device_of_pool(pool);
  if (device < 0) return refuse(state, "a pool that does not exist");
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (state.may_order_streams(pool)) return refuse(state, "a pool that may make streams wait");
  if (state.capture_of(stream)) return refuse(state, "allocated while a graph is captured");
  if (bytes > std::size_t{1} << 30) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t promised = state.memory().promise(bytes, device, number_of(pool));
  *address = promised;
  return state.push(stream, [&state, promised] { state.memory().fulfil(promised); });
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  BEGIN();
  if (state.capture_of(stream)) return refuse(state, "freed while a graph is captured");
  if (!state.memory().give_up(address)) return refuse(state, "freed what is none of a pool");
  return state.push(stream, [&state, address] {
    if (!state.memory().end(address)) state.misused("memory was freed that another stream uses");
  });
}

}  // extern "C"
