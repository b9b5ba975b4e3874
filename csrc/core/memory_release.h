// Memory of GPUs that the application keeps without using it, as torch's allocator does: asked for
// where an allocation of Rueda's fails.
#pragma once

#include <functional>

namespace rueda {

// Gives back to the driver what it keeps of this GPU without using it. Called by Rueda's threads
// and by those that call Rueda; it must not wait for a tensor of Rueda's.
using ReleaseMemory = std::function<void(int device)>;

// For the process, instead of the one before; null for none.
void set_memory_release(ReleaseMemory release);
// False where nobody can be asked.
bool release_memory(int device);

// Calls again after a release where the first call fails. `call` returns an Expected.
template <class Call>
auto allocate_with_release(int device, const Call& call) {
  auto allocated = call();
  if (allocated || !release_memory(device)) return allocated;
  return call();
}

}  // namespace rueda
