// Numbers of 64 bits by which ranks see whether bytes are equal, the same as
// python/rueda/torch/fingerprints.py computes wherever a tensor is: that file says what they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rueda {

// Of the bytes as words of 64 bits, the last one filled up with zeros. 0 for no bytes.
[[nodiscard]] std::uint64_t fingerprint(std::span<const std::byte> content);

}  // namespace rueda
