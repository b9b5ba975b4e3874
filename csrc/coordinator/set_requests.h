// What the application asks of process sets without an agreement of all ranks: sets that only their
// members know, and the end of others on this rank alone. Any thread may call everything.
#pragma once

#include <vector>

#include "coordinator/command_sender.h"
#include "coordinator/process_sets.h"

namespace rueda {

class SetRequests {
 public:
  // Both are referred to.
  SetRequests(CommandSender& sender, ProcessSets& process_sets)
      : sender_(sender), process_sets_(process_sets) {}

  // A set that only its members know, see ProcessSets::form(). Returns once it is open here.
  Status form(int id, const std::vector<int>& ranks);
  // Its end on this rank, with which it ends for all.
  Status dissolve(int id);
  // ProcessSets::take_back(), and the answer to who has changed sets meanwhile.
  void take_back();
  // The end of all sets that every rank knows, on this rank: each does so at the same place among
  // what it does with them, and none waits for another.
  void end_added();

 private:
  Status end(int id);

  CommandSender& sender_;
  ProcessSets& process_sets_;
};

}  // namespace rueda
