// Keeps ranks of one host from spinning on a processor that another rank needs.
//
// A thread that waits for other ranks publishes the processor it runs on. If it finds there a rank
// that it waits for, that rank cannot be running: the thread moves to a processor where no rank was
// last seen, or yields its own.
#pragma once

#include <memory>
#include <vector>

#include "core/clock.h"
#include "onehost/host_memory.h"

namespace rueda {

// For one waiting thread at a time.
class Placement {
 public:
  // If `host` is null, no processor counts as shared.
  explicit Placement(std::shared_ptr<HostMemory> host);

  // Call repeatedly while the calling thread waits; takes nanoseconds and no system call. Publishes
  // where the thread is, and returns whether another rank was last seen on the same processor and
  // so cannot be running.
  [[nodiscard]] bool shares_processor();

  // Moves the calling thread to another of its allowed processors, where no rank was last seen. Its
  // affinity mask does not change. False if there is no such processor, or this was tried a moment
  // ago.
  bool move_apart(Time now);

 private:
  [[nodiscard]] bool is_taken(int processor) const;
  void say(int processor);

  const std::shared_ptr<HostMemory> host_;
  const long processors_;  // of the machine; querying it takes system calls
  Time next_move_{};
};

}  // namespace rueda
