// Whose turn it is among operations that run one after the other, in the order in which they have
// lined up.
#pragma once

#include <cstdint>

namespace rueda {

class Turns {
 public:
  // Takes a place in the queue.
  [[nodiscard]] std::uint64_t line_up() { return next_++; }
  [[nodiscard]] bool is_turn_of(std::uint64_t ticket) const { return serving_ == ticket; }
  void end_turn() { ++serving_; }
  // Whether the turn of everybody who has lined up has ended.
  [[nodiscard]] bool is_idle() const { return serving_ == next_; }

 private:
  std::uint64_t next_ = 0;
  std::uint64_t serving_ = 0;
};

}  // namespace rueda
