// How much of small messages, which travel with their offers, a receiver may have to keep: credits.
//
// A sender counts by receiver what it has sent ahead; a receiver counts by sender what it has taken
// and tells it in halves of the window, so that this costs next to nothing. Nobody waits for room:
// what finds none is offered as large messages are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>

namespace rueda {

class InlineWindow {
 public:
  // From one sender at one receiver, each message with its offer. 248 messages of 4096 bytes, 8192
  // of none.
  static constexpr std::size_t bytes = 1 << 20;
  static constexpr std::size_t offer_bytes = 128;

  // `tell`: tells a sender that so much of what it has sent ahead has been taken.
  explicit InlineWindow(std::function<void(int sender, std::size_t room)> tell)
      : tell_(std::move(tell)) {}

  // Whether a message may be sent ahead; it counts from now on.
  [[nodiscard]] bool reserve(int receiver, std::size_t length) {
    std::size_t& ahead = ahead_[receiver];
    if (ahead + length + offer_bytes > bytes) return false;
    ahead += length + offer_bytes;
    return true;
  }
  // What the receiver has told. More than was sent, which only a faulty peer tells, counts as all.
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
  std::map<int, std::size_t> taken_;  // and not told
};

}  // namespace rueda
