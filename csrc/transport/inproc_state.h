// What the threads of an InprocHub share. Only for the inproc sources.
#pragma once

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
#include "transport/control_lane.h"
#include "transport/mailbox.h"
#include "transport/transport.h"

namespace rueda {

struct InprocMessage {
  int source = -1;
  Tag tag = 0;
  std::vector<std::byte> bytes;
};

struct InprocNotice {
  enum class Kind : std::uint8_t { message, good_bye, loss };
  Kind kind = Kind::message;
  int source = -1;
  std::vector<std::byte> bytes;
  Status cause;
};

struct InprocRank {
  Mailbox<InprocMessage> bulk{MailboxBell::when_armed};
  Mailbox<InprocNotice> control{MailboxBell::whenever_filled};
  std::atomic<bool> dead{false};
  std::atomic<bool> closed{false};  // its control lane has said good-bye
};

struct InprocState {
  explicit InprocState(int size) : ranks(static_cast<std::size_t>(size)) {}

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  [[nodiscard]] InprocRank& rank(int index) { return ranks[static_cast<std::size_t>(index)]; }
  [[nodiscard]] bool reaches(int from, int to) { return !rank(from).dead && !rank(to).dead; }
  void kill(int victim, const std::string& cause);

  std::deque<InprocRank> ranks;

  // Of the bootstrap.
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::string> store;
  std::set<int> arrived;  // at the barrier that is going on
  std::size_t barriers_passed = 0;
};

[[nodiscard]] std::unique_ptr<Transport> make_inproc_transport(std::shared_ptr<InprocState>, int);
[[nodiscard]] std::unique_ptr<ControlLane> make_inproc_control(std::shared_ptr<InprocState>, int);
[[nodiscard]] std::unique_ptr<Bootstrap> make_inproc_bootstrap(std::shared_ptr<InprocState>, int);

}  // namespace rueda
