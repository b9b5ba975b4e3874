#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "core/unique_fd.h"
#include "rueda/rueda.h"

namespace rueda {

// A mapping of an anonymous memory file: it does not count against /dev/shm and leaves nothing
// behind.
std::shared_ptr<std::byte[]> allocate(std::size_t bytes) {
  const UniqueFd file(::memfd_create("rueda", MFD_CLOEXEC));
  const std::size_t length = bytes == 0 ? 1 : bytes;
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(length)) != 0) throw std::bad_alloc();
  void* memory = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory),
          [length](std::byte* mapped) { ::munmap(mapped, length); }};
}

}  // namespace rueda
