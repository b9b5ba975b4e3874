// Memory and copies, under the names by which they are looked up.
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "entry.h"

using rueda::test::DriverState;
using rueda::test::Memory;
using rueda::test::refuse;

namespace {

// A step of a stream that comes too early or too late is the end of its device.
void expect_there(Memory& memory, std::uint64_t address, std::size_t bytes = 1) {
  if (memory.is_there(address, bytes)) return;
  throw std::runtime_error("a stream used memory before its allocation, or after its end");
}

// Runs `step` on a stream, each time that its graph is launched where it is captured; the memory is
// in use from then on until it is done.
CUresult use(DriverState& state, CUstream stream, std::vector<std::uint64_t> addresses,
             std::function<void()> step) {
  Memory& memory = state.memory();
  return state.push_each(stream, [&memory, addresses = std::move(addresses), step] {
    for (const std::uint64_t address : addresses) memory.change_uses(address, 1);
    return [&memory, addresses, step] {
      for (const std::uint64_t address : addresses) expect_there(memory, address);
      step();
      for (const std::uint64_t address : addresses) memory.change_uses(address, -1);
    };
  });
}

// Copies on a stream between memory that the double knows.
CUresult copy(DriverState& state, CUstream stream, std::uint64_t to, std::uint64_t from,
              std::size_t bytes) {
  for (const std::uint64_t address : {to, from}) {
    if (!state.memory().contains(address, bytes))
      return refuse(state, "a copy beyond an allocation");
  }
  return use(state, stream, {to, from}, [to, from, bytes] {
    std::memcpy(Memory::host_address(to), Memory::host_address(from), bytes);
  });
}

CUresult forbid(DriverState& state, const char* what) {
  return state.forbid_while_capturing(what);
}

std::uint64_t address_of(const void* memory) {
  return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  BEGIN();
  if (const CUresult no = forbid(state, "allocated"); no != CUDA_SUCCESS) return no;
  if (bytes > std::size_t{1} << 30) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = state.memory().allocate(bytes, state.current_device());
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
  BEGIN();
  if (const CUresult no = forbid(state, "freed"); no != CUDA_SUCCESS) return no;
  if (state.memory().in_use(address)) return refuse(state, "memory was freed that a stream uses");
  return state.memory().free(address, true) ? CUDA_SUCCESS : refuse(state, "freed what is none");
}
CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned flags) {
  BEGIN();
  if (const CUresult no = forbid(state, "allocated pinned memory"); no != CUDA_SUCCESS) return no;
  if (flags != CU_MEMHOSTALLOC_PORTABLE) return refuse(state, "pinned for one context only");
  if (bytes > std::size_t{1} << 30) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<void*>(state.memory().allocate(bytes, -1));
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* address) {
  BEGIN();
  if (const CUresult no = forbid(state, "freed pinned memory"); no != CUDA_SUCCESS) return no;
  if (state.memory().in_use(address_of(address)))
    return refuse(state, "pinned memory was freed that a stream uses");
  return state.memory().free(address_of(address), false) ? CUDA_SUCCESS
                                                         : refuse(state, "freed what is none");
}
CUresult cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned) {
  BEGIN();
  if (const CUresult no = forbid(state, "pinned"); no != CUDA_SUCCESS) return no;
  return state.memory().pin(address_of(address), bytes) ? CUDA_SUCCESS
                                                        : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}
CUresult cuMemHostUnregister(void* address) {
  BEGIN();
  if (const CUresult no = forbid(state, "unpinned"); no != CUDA_SUCCESS) return no;
  return state.memory().unpin(address_of(address))
             ? CUDA_SUCCESS
             : refuse(state, "unpinned what is in use or none");
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                              CUstream stream) {
  BEGIN();
  Memory& memory = state.memory();
  if (memory.device_of(to) < 0) return refuse(state, "the target of a copy is no device's memory");
  if (memory.device_of(address_of(from)) >= 0)
    return refuse(state, "copied from a device as a host");
  if (memory.contains(address_of(from), bytes))
    return copy(state, stream, to, address_of(from), bytes);
  // Ordinary memory has been read when the call returns.
  if (!memory.contains(to, bytes)) return refuse(state, "a copy beyond an allocation");
  const auto* source = static_cast<const std::byte*>(from);
  return use(state, stream, {to}, [to, taken = std::vector<std::byte>(source, source + bytes)] {
    std::memcpy(Memory::host_address(to), taken.data(), taken.size());
  });
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  BEGIN();
  Memory& memory = state.memory();
  if (memory.device_of(from) < 0)
    return refuse(state, "the source of a copy is no device's memory");
  if (memory.device_of(address_of(to)) >= 0) return refuse(state, "copied to a device as a host");
  if (memory.contains(address_of(to), bytes))
    return copy(state, stream, address_of(to), from, bytes);
  // Ordinary memory has been written when the call returns.
  if (state.capture_of(stream)) return refuse(state, "a captured copy to ordinary memory");
  if (!memory.contains(from, bytes)) return refuse(state, "a copy beyond an allocation");
  auto done = std::make_shared<rueda::test::Completion>();
  memory.change_uses(from, 1);
  const CUresult pushed = state.push(stream, [=, &memory] {
    if (!memory.is_there(from, bytes)) done->set();
    expect_there(memory, from, bytes);
    std::memcpy(to, Memory::host_address(from), bytes);
    memory.change_uses(from, -1);
    done->set();
  });
  if (pushed == CUDA_SUCCESS && !done->wait()) return refuse(state, "a copy waited half a minute");
  return pushed;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                              CUstream stream) {
  BEGIN();
  if (state.memory().device_of(to) < 0 || state.memory().device_of(from) < 0)
    return refuse(state, "a copy on a device of memory that is not its");
  return copy(state, stream, to, from, bytes);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream) {
  BEGIN();
  Memory& memory = state.memory();
  if (!memory.contains(to, bytes)) return refuse(state, "filled beyond an allocation");
  return use(state, stream, {to},
             [to, value, bytes] { std::memset(Memory::host_address(to), value, bytes); });
}
}  // extern "C"
