// Getting memory onto huge pages, which a pass over large tensors needs for its full speed.
#pragma once

#include <cstddef>

namespace rueda {

// Puts part of a shared mapping onto huge pages and returns how many bytes of it lie on them now,
// which may be none: kernels may refuse. What has not been touched yet is taken from the system, in
// one piece per huge page. Begins and ends at multiples of a huge page, in the mapping and in the
// file alike; contents stay as they are.
[[nodiscard]] std::size_t put_on_huge_pages(std::byte* begin, std::size_t bytes);

// The same with memory of any kind, none of which it touches: pages that nobody has used yet, or
// that are not mapped as a whole, stay as they are.
[[nodiscard]] std::size_t put_used_on_huge_pages(std::byte* begin, std::size_t bytes);

}  // namespace rueda
