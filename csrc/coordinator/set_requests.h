// Changes of process sets that need no agreement of all ranks: sets that only their members know,
// and the end of other sets on this rank alone. Any thread may call everything.
#pragma once

#include <vector>

#include "coordinator/command_sender.h"
#include "coordinator/process_sets.h"
#include "core/clock.h"

namespace rueda {

class SetRequests {
 public:
  // Keeps references to both.
  SetRequests(CommandSender& sender, ProcessSets& process_sets)
      : sender_(sender), process_sets_(process_sets) {}

  // Forms a set that only its members know, see ProcessSets::form(). Returns once it is open here.
  Status form(int id, const std::vector<int>& ranks);
  // Ends it on this rank, which ends it for all members.
  Status destroy(int id);
  // Replaces the time after which operations fail for which members are missing; zero: stall_error.
  Status set_timeout(int id, Duration timeout);
  // ProcessSets::take_back(), then answers callers that have changed sets meanwhile.
  void take_back();
  // Ends all sets that every rank knows, on this rank: each rank does so at the same place in its
  // sequence of operations on them, and none waits for another.
  void end_added();

 private:
  Status end(int id);

  CommandSender& sender_;
  ProcessSets& process_sets_;
};

}  // namespace rueda
