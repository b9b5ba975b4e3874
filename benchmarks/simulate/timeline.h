// What is to happen when, and how far each rank's engine, which is one thread, has come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "event_queue.h"

namespace rueda::simulate {

// Not negative.
[[nodiscard]] inline Duration nanoseconds(double value) {
  return Duration(static_cast<Duration::rep>(value + 0.5));
}

enum class EventKind : std::uint8_t {
  submit,   // the application has a tensor: `key`
  control,  // a control message, number `key`, arrives from rank `from`
  data,     // a message of the data plane arrives from rank `from`: `key` says of what
  direct,   // the same for an operation that had begun when it was sent: `key` is its address
  wake,     // what has been waited for in operation `key` is over
  report,   // to a host's leader: all ranks of the host have joined a round of plan `key`
  execute,  // decision number `key` is in the host's log
};

struct Event {
  EventKind kind;
  std::uint32_t rank;
  std::int32_t from;
  std::uint64_t key;
};

class Timeline {
 public:
  explicit Timeline(int ranks) : clocks_(static_cast<std::size_t>(ranks)) {}

  // See EventQueue.
  [[nodiscard]] const Event* after(std::size_t others) const { return queue_.after(others); }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  void add(Time at, const Event& event) { queue_.add(at, event); }
  // Its rank's clock is not before it from then on.
  Event take() {
    const Event event = queue_.take();
    Time& clock = clocks_[event.rank];
    clock = std::max(clock, queue_.now());
    return event;
  }

  [[nodiscard]] Time now() const { return queue_.now(); }
  // When the rank's engine has done what it has been given so far.
  [[nodiscard]] Time clock(int rank) const { return clocks_[static_cast<std::size_t>(rank)]; }
  void spend(int rank, double nanoseconds_spent) {
    clocks_[static_cast<std::size_t>(rank)] += nanoseconds(nanoseconds_spent);
  }

 private:
  EventQueue<Event> queue_;
  std::vector<Time> clocks_;
};

}  // namespace rueda::simulate
