// Work that a channel's members divide dynamically: every member states how many pieces there are,
// then claims pieces until none are left.
//
// All claims use one counter in shared memory, which only grows. Each member makes exactly one
// claim that fails, so all know where the claims of the next work begin without communicating.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace rueda {

class WorkClaims {
 public:
  // All members must divide the same work in the same order.
  explicit WorkClaims(int members) : members_(static_cast<std::uint64_t>(members)) {}

  // `counter`: the same for all members. A member that has begun must continue until nothing is
  // left, unless no member claims anything any more: a channel is not used again after an error.
  void begin(std::atomic<std::uint64_t>& counter, std::uint64_t pieces) {
    counter_ = &counter;
    pieces_ = pieces;
    first_ = next_;
    next_ += pieces + members_;
  }
  // A piece that no other member gets; nullopt if none are left.
  [[nodiscard]] std::optional<std::uint64_t> claim() {
    const std::uint64_t claimed = counter_->fetch_add(1, std::memory_order_relaxed) - first_;
    if (claimed < pieces_) return claimed;
    return std::nullopt;
  }

 private:
  const std::uint64_t members_;
  std::atomic<std::uint64_t>* counter_ = nullptr;
  std::uint64_t pieces_ = 0;
  std::uint64_t first_ = 0;  // claim number of its first piece
  std::uint64_t next_ = 0;   // where the next work's claims begin
};

}  // namespace rueda
