// The operations that are under way on one rank, by their keys, and the messages for them that have
// arrived and have not been taken: how many, from whom. Messages of one operation between two ranks
// arrive in the order in which they were sent, some of them before it begins.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace rueda::simulate {

template <class Operation>
class Mailbox {
 public:
  void open(std::uint64_t key, Operation* operation) { operations_.push_back({key, operation}); }
  void close(std::uint64_t key) {
    std::erase_if(operations_, [&](const Open& it) { return it.key == key; });
  }
  // Null where it has not begun, or is over.
  [[nodiscard]] Operation* find(std::uint64_t key) const {
    const auto found = std::find_if(operations_.begin(), operations_.end(),
                                    [&](const Open& it) { return it.key == key; });
    return found == operations_.end() ? nullptr : found->operation;
  }

  void put(std::uint64_t key, int from) {
    if (latest_.arrived > 0 && !latest_.is(key, from)) {
      earlier_.push_back(latest_);
      latest_.arrived = 0;
    }
    latest_ = {key, from, latest_.arrived + 1};
  }
  // Whether there was one.
  bool take(std::uint64_t key, int from) {
    // Mostly there is one in all, which is taken at once.
    if (latest_.arrived > 0 && latest_.is(key, from)) {
      --latest_.arrived;
      return true;
    }
    const auto found = std::find_if(earlier_.begin(), earlier_.end(),
                                    [&](const Messages& it) { return it.is(key, from); });
    if (found == earlier_.end()) return false;
    if (--found->arrived == 0) {
      *found = earlier_.back();
      earlier_.pop_back();
    }
    return true;
  }

 private:
  struct Open {
    std::uint64_t key;
    Operation* operation;
  };
  struct Messages {
    std::uint64_t key = 0;
    int from = 0;
    int arrived = 0;

    [[nodiscard]] bool is(std::uint64_t other, int sender) const {
      return key == other && from == sender;
    }
  };

  Messages latest_;
  std::vector<Messages> earlier_;  // few, all of which arrived before
  std::vector<Open> operations_;   // few
};

}  // namespace rueda::simulate
