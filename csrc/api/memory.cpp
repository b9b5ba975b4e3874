#include <cstring>
#include <new>

#include "api/current_runtime.h"
#include "onehost/huge_pages.h"
#include "onehost/registered_memory.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

constexpr std::align_val_t alignment{64};

// Memory like any other: a tensor in it works as well, only more slowly.
std::shared_ptr<std::byte[]> allocate_ordinary(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(::operator new[](bytes == 0 ? 1 : bytes, alignment));
  std::memset(memory, 0, bytes);
  return {memory, [](std::byte* freed) { ::operator delete[](freed, alignment); }};
}

}  // namespace

std::shared_ptr<std::byte[]> allocate(std::size_t bytes) {
  if (const auto registered = RegisteredMemory::of_process()) {
    if (auto memory = registered.value()->allocate(bytes)) return memory;
  }
  return allocate_ordinary(bytes);
}

std::size_t settle_tensor(const void* tensor, std::size_t bytes, ProcessSet process_set) {
  const auto runtime = runtime_of(process_set).runtime;
  const Epoch& epoch = runtime->epoch();
  const auto& memory = epoch.layout().host.memory();
  if (!memory || !memory->has_direct_access()) return 0;
  if (!epoch.algorithms().host_policy().huge_pages) return 0;
  if (memory->registered(tensor, bytes)) return 0;
  return put_tensor_on_huge_pages(tensor, bytes);
}

bool has_direct_access() {
  const auto runtime = current_runtime();
  const HostGroup& host = runtime->epoch().layout().host;
  return host.is_world(runtime->topology().size) && host.memory()->has_direct_access();
}

}  // namespace rueda
