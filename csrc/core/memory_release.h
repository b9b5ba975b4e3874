// GPU memory that the application keeps without using it, as torch's allocator does. Rueda asks for
// it when one of its allocations fails.
#pragma once

#include <functional>

namespace rueda {

// Returns the unused memory that the application keeps on this GPU to the driver. Called by Rueda's
// threads and by those that call Rueda; it must not wait for a tensor of Rueda's.
using ReleaseMemory = std::function<void(int device)>;

// Sets the function for the process, replacing the previous one; null for none.
void set_memory_release(ReleaseMemory release);
// False if no function is set.
bool release_memory(int device);

// Calls again after a release if the first call fails. `call` returns an Expected.
template <class Call>
auto allocate_with_release(int device, const Call& call) {
  auto allocated = call();
  if (allocated || !release_memory(device)) return allocated;
  return call();
}

}  // namespace rueda
