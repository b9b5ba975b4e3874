// Worlds beside the process's own, whose ranks are threads: for tests of public functions that take
// a process set.
#pragma once

#include <functional>
#include <string>

#include "api/bindings.h"
#include "ranks/rank_threads.h"

namespace rueda::test {

inline WorldMeeting meeting_of_threads(int rank, int size, const std::string& name) {
  return {rank, size, "unix:@rueda-test-" + name, "a secret that is long enough", -1, {}};
}

// Runs `work` as each rank of a new world; fails the test with everything it threw.
inline void with_world(int size, const std::string& name,
                       const std::function<void(int rank, ProcessSet set)>& work) {
  run_ranks(size, [&](int rank) {
    const ProcessSet set = open_world(meeting_of_threads(rank, size, name));
    try {
      work(rank, set);
    } catch (const std::exception& error) {
      close_world(set, error.what());  // otherwise the others wait for this rank
      throw;
    }
    close_world(set);
  });
}

}  // namespace rueda::test
