// Bytes written as numbers.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace rueda::test {

inline std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

}  // namespace rueda::test
