// Queues commands from the application's threads for the owner of the progress lock, and numbers
// operations without a name in the order of submission.
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

// Any thread may call everything. Accepts nothing before open().
class CommandQueue {
 public:
  void open() { accepting_ = true; }
  // From now on accepts nothing that a handle waits for, because of `reason`. The first reason
  // stays.
  void close(const Status& reason);
  // The same for one process set.
  void close(int set_id, const Status& reason);
  // Whether nothing is accepted for the set. Cheap while no set has been closed.
  [[nodiscard]] bool is_closed(int set_id) const {
    return !accepting_ || (has_closed_sets_ && !refusal(set_id).ok());
  }
  // Why; ok while the queue is open for the set.
  [[nodiscard]] Status refusal(int set_id) const;

  // Refuses the command if the queue is closed and a handle waits for it.
  void push(Command command);
  // Numbers the command's submissions that have no name. Ok if the command may be carried out; it
  // has then been queued if `queue` says so. Otherwise the command is unchanged.
  [[nodiscard]] Status admit(Command& command, const ProcessSetMembers& members, bool queue);
  // For an operation without a name that may not need to be queued: puts its numbered name into
  // `name`. If `use` returns false, the next operation gets that name.
  [[nodiscard]] bool number_if(int set_id, std::string& name,
                               const std::function<bool(const std::string&)>& use);
  [[nodiscard]] std::vector<Command> take();

  // Restarts the numbers of the set's operations without a name.
  void restart_numbers(int set_id);
  // The set no longer exists.
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
