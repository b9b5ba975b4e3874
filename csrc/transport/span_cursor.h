// Walks through the concatenation of several spans of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace rueda {

// `Byte` is std::byte (to be filled) or const std::byte (to be read). Owns its list of spans, not
// the bytes.
template <class Byte>
class SpanCursor {
 public:
  SpanCursor() = default;
  template <class Spans>
  explicit SpanCursor(const Spans& spans) {
    spans_.reserve(spans.size());
    for (const auto& span : spans) {
      if (!span.empty()) spans_.emplace_back(span.data(), span.size());
      remaining_ += span.size();
    }
  }

  [[nodiscard]] std::size_t remaining() const { return remaining_; }
  // The next contiguous bytes; empty at the end.
  [[nodiscard]] std::span<Byte> front() const {
    return index_ < spans_.size() ? spans_[index_].subspan(offset_) : std::span<Byte>{};
  }
  // `count` is at most front().size().
  void advance(std::size_t count) {
    offset_ += count;
    remaining_ -= count;
    if (index_ < spans_.size() && offset_ == spans_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }

 private:
  std::vector<std::span<Byte>> spans_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
  std::size_t remaining_ = 0;
};

// Appends to `parts` the memory of `count` bytes of the concatenation of `spans`, from the
// `offset`-th on.
template <class Byte>
void append_slice(const std::vector<std::span<Byte>>& spans, std::size_t offset, std::size_t count,
                  std::vector<std::span<Byte>>& parts) {
  for (const std::span<Byte>& span : spans) {
    if (count == 0) return;
    if (offset >= span.size()) {
      offset -= span.size();
      continue;
    }
    const std::size_t here = std::min(span.size() - offset, count);
    parts.push_back(span.subspan(offset, here));
    offset = 0;
    count -= here;
  }
}

// Fills `target` with `source`, which must not be longer than what remains.
inline void copy_into(SpanCursor<std::byte>& target, std::span<const std::byte> source) {
  while (!source.empty()) {
    const auto room = target.front();
    const std::size_t count = std::min(room.size(), source.size());
    std::memcpy(room.data(), source.data(), count);
    target.advance(count);
    source = source.subspan(count);
  }
}

// Takes up to `room.size()` bytes out of `source`; returns how many.
inline std::size_t copy_from(SpanCursor<const std::byte>& source, std::span<std::byte> room) {
  std::size_t copied = 0;
  while (copied < room.size() && source.remaining() > 0) {
    const auto piece = source.front();
    const std::size_t count = std::min(room.size() - copied, piece.size());
    std::memcpy(room.data() + copied, piece.data(), count);
    source.advance(count);
    copied += count;
  }
  return copied;
}

}  // namespace rueda
