// Keeps ranks of one host from spinning on a processor that another rank needs.
//
// Whoever waits for other ranks says on which processor it is. Finding there a rank that it waits
// for, it knows that this rank does not run: it moves to a processor where no rank was last, or
// gives its own away.
#pragma once

#include <memory>
#include <vector>

#include "core/clock.h"
#include "onehost/host_memory.h"

namespace rueda {

// For one waiting thread at a time.
class Placement {
 public:
  // `host` may be null: then no processor is ever shared.
  explicit Placement(std::shared_ptr<HostMemory> host);

  // To be called over and over while the calling thread waits: takes nanoseconds and makes no
  // system call. Says where the thread is, and returns whether another rank was last seen on the
  // same processor, so that it cannot be running.
  [[nodiscard]] bool shares_processor();

  // Moves the calling thread to another of the processors that it may run on, where no rank was
  // last. Those that it may run on stay the same. False where there is none, or where it was tried
  // a moment ago.
  bool move_apart(Time now);

 private:
  [[nodiscard]] bool is_taken(int processor) const;
  void say(int processor);

  const std::shared_ptr<HostMemory> host_;
  const long processors_;  // of the machine; to ask for them takes system calls
  Time next_move_{};
};

}  // namespace rueda
