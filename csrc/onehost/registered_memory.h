// Memory of this process that the other ranks of the host can reach directly: one sparse anonymous
// file, mapped once, from which tensors are allocated. It belongs to the process, not to a world: a
// tensor stays valid over shutdown() and init().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/status.h"

namespace rueda {

class RegisteredMemory {
 public:
  // Made with the first call; the reason, always the same, where it cannot be made.
  [[nodiscard]] static Expected<RegisteredMemory*> of_process();

  // Zeroed, aligned to 64 bytes (to 2 MiB from 2 MiB on, and then on huge pages where the kernel
  // gives them). Null when there is no room left. Thread-safe, as is freeing.
  [[nodiscard]] std::shared_ptr<std::byte[]> allocate(std::size_t bytes);

  // Where the memory [address, address + bytes) lies in the file; nothing when it does not lie in
  // allocated registered memory wholly. Lock-free and quick: asked for every tensor.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* address,
                                                       std::size_t bytes) const;

  [[nodiscard]] int fd() const;
  [[nodiscard]] std::size_t bytes() const;  // length of the file
};

}  // namespace rueda
