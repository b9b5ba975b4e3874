// Commands on their way from the application's threads to the owner of the progress lock, and the
// numbers of operations without a name, which follow from the order of submission.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "coordinator/command.h"
#include "coordinator/process_sets.h"
#include "core/status.h"

namespace rueda {

// Any thread may call everything. Takes nothing before open().
class CommandQueue {
 public:
  void open() { accepting_ = true; }
  // Nothing that a handle waits for is taken any more, because of `reason`. The first reason stays.
  void close(const Status& reason);
  // The same for what one process set is asked for.
  void close(int set_id, const Status& reason);
  // Whether nothing is accepted for the set any more. Cheap while no set has been closed.
  [[nodiscard]] bool is_closed(int set_id) const {
    return !accepting_ || (has_closed_sets_ && !refusal(set_id).ok());
  }
  // Why; ok while the queue is open for the set.
  [[nodiscard]] Status refusal(int set_id) const;

  // Refuses the command where the queue is closed and a handle waits for it.
  void push(Command command);
  // Numbers the submissions of the command where they have no name. Ok where the command may be
  // carried out: then it has been queued, if `queue` says so. Otherwise the command is as it was.
  [[nodiscard]] Status admit(Command& command, const ProcessSetMembers& members, bool queue);
  // For an operation without a name that may not have to be queued: puts the name that it gets into
  // `name`, which the next one gets where `use` returns that it was of no use.
  [[nodiscard]] bool number_if(int set_id, std::string& name,
                               const std::function<bool(const std::string&)>& use);
  [[nodiscard]] std::vector<Command> take();

  // The numbers of the set's operations without a name begin anew.
  void restart_numbers(int set_id);
  // The set is gone.
  void forget(int set_id);

 private:
  void number_unnamed(int set_id, std::vector<Submission>& submissions);
  [[nodiscard]] Status refusal_locked(int set_id) const;

  mutable std::mutex mutex_;
  std::vector<Command> commands_;
  std::map<int, std::uint64_t> next_unnamed_;  // per set
  std::atomic<bool> accepting_ = false;        // closed under the mutex
  Status refusal_;
  std::atomic<bool> has_closed_sets_ = false;
  std::map<int, Status> closed_sets_;
};

}  // namespace rueda
