// Getting memory onto huge pages, which a pass over large tensors needs for its full speed.
#pragma once

#include <cstddef>

namespace rueda {

// Puts part of a shared mapping onto huge pages and returns how many bytes of it lie on them now,
// which may be none: kernels may refuse. What has not been touched yet is taken from the system, in
// one piece per huge page. Begins and ends at multiples of a huge page, in the mapping and in the
// file alike; contents stay as they are.
[[nodiscard]] std::size_t put_on_huge_pages(std::byte* begin, std::size_t bytes);

// A tensor of 64 KiB or more in ordinary memory, where it lies: the kernel takes hold of each page
// that it copies for process_vm_readv, of one huge page instead of 512 small ones. At its ends it
// takes pages that it shares with others where half of them is in use. Only for memory that stays:
// a page may cost some milliseconds, and gradients that are freed after each step are slower for
// it. Others may read and write it at the same time; contents stay. Returns the bytes that lie on
// huge pages now: kernels before 6.1 grant none.
std::size_t put_tensor_on_huge_pages(const void* tensor, std::size_t bytes);

}  // namespace rueda
