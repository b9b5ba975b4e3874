// Moves memory to huge pages, which a pass over large tensors needs to run at full speed.
#pragma once

#include <cstddef>

namespace rueda {

// Moves part of a shared mapping to huge pages. Returns how many bytes are on huge pages now; may
// be 0, since kernels may refuse. Untouched parts are allocated, one piece per huge page. The range
// must start and end at multiples of a huge page, in the mapping as in the file. Contents are
// preserved.
[[nodiscard]] std::size_t put_on_huge_pages(std::byte* begin, std::size_t bytes);

// Moves a tensor of 64 KiB or more in ordinary memory to huge pages, at the same address. For
// process_vm_readv the kernel pins each page that it copies, and one huge page replaces 512 small
// ones. Huge pages at its ends, shared with other data, are included if at least half is in use.
// Only for memory that stays: a page may cost some milliseconds, and gradients that are freed after
// each step get slower. Others may access it meanwhile; contents are preserved. Returns the bytes
// on huge pages; 0 with kernels before 6.1.
std::size_t put_tensor_on_huge_pages(const void* tensor, std::size_t bytes);

}  // namespace rueda
