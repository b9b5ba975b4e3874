// Credit-based flow control for small messages, which travel with their offers: limits what a
// receiver may have to store.
//
// A sender counts what it has sent ahead to each receiver. A receiver counts what it has taken from
// each sender, and reports it in halves of the window, which costs next to nothing. Nobody waits
// for room: a message that finds none is offered like a large one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

namespace rueda {

class InlineWindow {
 public:
  // Window of one sender at one receiver, including an overhead for each message's offer. Enough
  // for 248 messages of 4096 bytes, or 8192 empty ones.
  static constexpr std::size_t bytes = 1 << 20;
  static constexpr std::size_t offer_bytes = 128;

  // `tell`: tells a sender how much of what it has sent ahead has been taken.
  explicit InlineWindow(std::function<void(int sender, std::size_t room)> tell)
      : tell_(std::move(tell)) {}

  // Whether a message may be sent ahead; if so, it counts from now on.
  [[nodiscard]] bool reserve(int receiver, std::size_t length) {
    std::size_t& ahead = ahead_[receiver];
    if (ahead + length + offer_bytes > bytes) return false;
    ahead += length + offer_bytes;
    return true;
  }
  // The receiver has reported room. More than was sent, which only a faulty peer reports, counts as
  // all.
  void returned(int receiver, std::size_t room) {
    std::size_t& ahead = ahead_[receiver];
    ahead -= std::min(ahead, room);
  }
  // A message has been taken, or refused.
  void taken(int sender, std::size_t length) {
    std::size_t& room = taken_[sender];
    room += length + offer_bytes;
    if (room >= bytes / 2) tell_(sender, std::exchange(room, 0));
  }

 private:
  const std::function<void(int sender, std::size_t room)> tell_;
  std::map<int, std::size_t> ahead_;
  std::map<int, std::size_t> taken_;  // but not reported
};

}  // namespace rueda
