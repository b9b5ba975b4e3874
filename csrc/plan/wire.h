// Turns values into bytes and back. Integers are variable-length. A message that is too short or
// malformed makes the reader fail, never read out of bounds.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rueda {

class Writer {
 public:
  void byte(std::uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }
  void unsigned_integer(std::uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<std::uint8_t>(value) | 0x80);
      value >>= 7;
    }
    byte(static_cast<std::uint8_t>(value));
  }
  // Zig-zag, so that small negative numbers stay small.
  void integer(std::int64_t value) {
    unsigned_integer((static_cast<std::uint64_t>(value) << 1) ^
                     static_cast<std::uint64_t>(value >> 63));
  }
  void real(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<std::uint8_t>(bits >> shift));
  }
  void text(const std::string& value) {
    unsigned_integer(value.size());
    const auto* data = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), data, data + value.size());
  }
  // With its length.
  void block(std::span<const std::byte> value) {
    unsigned_integer(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }
  template <class Range>
  void integers(const Range& values) {
    unsigned_integer(values.size());
    for (const auto value : values) integer(value);
  }

  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::uint8_t byte() {
    if (rest_.empty()) return fail();
    const auto value = static_cast<std::uint8_t>(rest_.front());
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint64_t unsigned_integer() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::uint8_t part = byte();
      if (shift == 63 && part > 1) return fail();  // more than 64 bits
      value |= static_cast<std::uint64_t>(part & 0x7f) << shift;
      if ((part & 0x80) == 0) return value;
    }
    return fail();
  }
  std::int64_t integer() {
    const std::uint64_t value = unsigned_integer();
    return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
  }
  double real() {
    std::uint64_t bits = 0;
    for (int shift = 0; shift < 64; shift += 8) bits |= static_cast<std::uint64_t>(byte()) << shift;
    return std::bit_cast<double>(bits);
  }
  std::string text() {
    const std::size_t length = size();
    std::string value(reinterpret_cast<const char*>(rest_.data()), length);
    rest_ = rest_.subspan(length);
    return value;
  }
  std::span<const std::byte> block() {
    const std::size_t length = size();
    const auto value = rest_.first(length);
    rest_ = rest_.subspan(length);
    return value;
  }
  template <class T>
  std::vector<T> integers() {
    std::vector<T> values(size());  // each takes at least one byte, so a lie cannot exhaust memory
    for (T& value : values) {
      const std::int64_t wide = integer();
      value = static_cast<T>(wide);
      if (static_cast<std::int64_t>(value) != wide) fail();  // not a T
    }
    return values;
  }

  // The number of items that follow; fails if there cannot be that many.
  std::size_t size() {
    const std::uint64_t value = unsigned_integer();
    return value <= rest_.size() ? static_cast<std::size_t>(value) : fail();
  }

  // What has not been read yet.
  [[nodiscard]] std::span<const std::byte> rest() const { return rest_; }
  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }
  std::uint8_t fail() {
    ok_ = false;
    rest_ = {};
    return 0;
  }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace rueda
