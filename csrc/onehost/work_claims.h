// Work that the members of a channel divide among them as they come to it: every member says how
// many pieces there are, then claims them until there is nothing left to claim.
//
// All claims are of one counter in shared memory, which only grows. Each member claims once in
// vain, so all know where the claims of the next work begin without a word about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace rueda {

class WorkClaims {
 public:
  // Members that all divide the same work, in the same order.
  explicit WorkClaims(int members) : members_(static_cast<std::uint64_t>(members)) {}

  // `counter`: the same for all members. Whoever has begun goes on until nothing is left, or the
  // members claim nothing any more: after an error a channel is not used again.
  void begin(std::atomic<std::uint64_t>& counter, std::uint64_t pieces) {
    counter_ = &counter;
    pieces_ = pieces;
    first_ = next_;
    next_ += pieces + members_;
  }
  // The number of a piece that nobody else gets; nothing where none is left.
  [[nodiscard]] std::optional<std::uint64_t> claim() {
    const std::uint64_t claimed = counter_->fetch_add(1, std::memory_order_relaxed) - first_;
    if (claimed < pieces_) return claimed;
    return std::nullopt;
  }

 private:
  const std::uint64_t members_;
  std::atomic<std::uint64_t>* counter_ = nullptr;
  std::uint64_t pieces_ = 0;
  std::uint64_t first_ = 0;  // the claim of the first piece
  std::uint64_t next_ = 0;   // where those of the next work begin
};

}  // namespace rueda
