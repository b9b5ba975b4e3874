// Rows that have keys, as the rows of sparse tensors do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rueda {

// Rows in any order, with keys that may repeat.
struct KeyedRows {
  const void* keys = nullptr;  // not negative; of 4 or 8 bytes, and at any address
  const std::byte* values = nullptr;
  std::size_t count = 0;
};

// `Key`: std::uint32_t or std::uint64_t.
template <class Key>
std::uint64_t load_key(const void* keys, std::size_t place) {
  Key key;
  std::memcpy(&key, static_cast<const std::byte*>(keys) + place * sizeof key, sizeof key);
  return key;
}

}  // namespace rueda
