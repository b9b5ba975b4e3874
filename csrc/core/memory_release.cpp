#include "core/memory_release.h"

#include <mutex>
#include <utility>

namespace rueda {

namespace {

struct Releaser {
  std::mutex mutex;
  ReleaseMemory release;
};

// Never destroyed: allocating threads may outlive static objects.
Releaser& releaser() {
  static auto& the_one = *new Releaser;
  return the_one;
}

}  // namespace

void set_memory_release(ReleaseMemory release) {
  const std::lock_guard lock(releaser().mutex);
  std::swap(releaser().release, release);
}

bool release_memory(int device) {
  ReleaseMemory release;
  {
    const std::lock_guard lock(releaser().mutex);
    release = releaser().release;
  }
  if (!release) return false;
  release(device);
  return true;
}

}  // namespace rueda
