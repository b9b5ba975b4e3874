// What the threads of an InprocHub share. Only for the inproc sources.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/status.h"
#include "transport/bootstrap.h"
#include "transport/byte_ring.h"
#include "transport/control_lane.h"
#include "transport/mailbox.h"
#include "transport/transport.h"

namespace rueda {

struct InprocNotice {
  enum class Kind : std::uint8_t { message, good_bye, loss };
  Kind kind = Kind::message;
  int source = -1;
  std::vector<std::byte> bytes;
  Status cause;
};

struct alignas(64) CacheLine {
  std::array<std::byte, 64> bytes;
};

struct InprocRank {
  std::unique_ptr<CacheLine[]> inbox;
  std::vector<std::unique_ptr<std::byte[]>> rings;  // from each rank; null until it sends something
  Bell bell;                                        // of its transport
  Mailbox<InprocNotice> control;
  std::atomic<bool> dead{false};
  std::atomic<bool> closed{false};  // its control lane has said good-bye
};

struct InprocState {
  explicit InprocState(int size);

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] InprocRank& rank(int index) { return ranks[static_cast<std::size_t>(index)]; }
  // A rank that is dead to the others still reaches itself: its requests to itself are answered.
  [[nodiscard]] bool reaches(int from, int to) {
    return from == to || (!rank(from).dead && !rank(to).dead);
  }
  [[nodiscard]] Inbox inbox(int index) {
    return Inbox(reinterpret_cast<std::byte*>(rank(index).inbox.get()));
  }
  [[nodiscard]] std::unique_ptr<std::byte[]>& ring(int from, int to) {
    return rank(to).rings[static_cast<std::size_t>(from)];
  }
  void kill(int victim, const std::string& cause);

  std::deque<InprocRank> ranks;

  // For the bootstrap.
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> store;
  std::set<int> arrived;  // at the current barrier
  std::size_t barriers_passed = 0;
};

[[nodiscard]] std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocState>, int);
[[nodiscard]] std::unique_ptr<ControlLane> make_inproc_control(std::shared_ptr<InprocState>, int);
[[nodiscard]] std::unique_ptr<Bootstrap> make_inproc_bootstrap(std::shared_ptr<InprocState>, int);

}  // namespace rueda
