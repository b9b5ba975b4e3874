// 64-bit numbers by which ranks check whether bytes are equal, the same as those of
// python/rueda/torch/fingerprints.py on any device; that file defines them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rueda {

// Of the bytes as 64-bit words, the last one padded with zeros. 0 for no bytes.
[[nodiscard]] std::uint64_t fingerprint(std::span<const std::byte> content);

}  // namespace rueda
