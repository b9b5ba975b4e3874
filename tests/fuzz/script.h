// An input as a script: choices and blocks of bytes, one after the other. Every input is one, and a
// change of a few bytes changes a few steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/target.h"

namespace rueda::fuzz {

class Script {
 public:
  explicit Script(std::span<const std::byte> bytes) : rest_(bytes) {}

  [[nodiscard]] bool is_over() const { return rest_.empty(); }
  // 0 at the end.
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  int below(int limit) { return byte() % limit; }
  // Led by its length, of 16 bits; what is there, where that is less.
  std::span<const std::byte> block() {
    const std::size_t low = byte();
    const std::size_t told = low | std::size_t{byte()} << 8;
    const std::size_t length = std::min(told, rest_.size());
    const auto value = rest_.first(length);
    rest_ = rest_.subspan(length);
    return value;
  }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

class ScriptWriter {
 public:
  ScriptWriter& byte(int value) {
    bytes_.push_back(static_cast<std::byte>(value));
    return *this;
  }
  ScriptWriter& block(std::span<const std::byte> bytes) {
    byte(static_cast<int>(bytes.size() & 0xff)).byte(static_cast<int>(bytes.size() >> 8));
    return raw(bytes);
  }
  ScriptWriter& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  [[nodiscard]] Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

}  // namespace rueda::fuzz
