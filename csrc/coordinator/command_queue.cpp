#include "coordinator/command_queue.h"

#include <utility>

#include "core/strings.h"

namespace rueda {

namespace {

// With the set, lest equal numbers in two sets be taken for one name handed to both.
std::string numbered(int set_id, std::uint64_t number) {
  std::string name(numbered_prefix);
  if (set_id > 0) name.append("set").append(std::to_string(set_id)).append(".");
  return name.append(std::to_string(number % numbers_of_unnamed));
}

}  // namespace

void CommandQueue::close(const Status& reason) {
  const std::lock_guard lock(mutex_);
  accepting_ = false;
  if (refusal_.ok()) refusal_ = reason;
}

void CommandQueue::close(int set_id, const Status& reason) {
  const std::lock_guard lock(mutex_);
  closed_sets_.emplace(set_id, reason);
  has_closed_sets_ = true;
}

Status CommandQueue::refusal(int set_id) const {
  const std::lock_guard lock(mutex_);
  return refusal_locked(set_id);
}

Status CommandQueue::refusal_locked(int set_id) const {
  if (!accepting_) return refusal_;
  const auto closed = closed_sets_.find(set_id);
  return closed == closed_sets_.end() ? Status() : closed->second;
}

void CommandQueue::push(Command command) {
  const std::lock_guard lock(mutex_);
  const bool is_operation =
      command.handle || command.message.handle || (command.table && command.table->operation);
  if (is_operation) {
    if (const Status refused = refusal_locked(command.set_id); !refused.ok()) {
      return command.refuse(refused);
    }
  }
  commands_.push_back(std::move(command));
}

Status CommandQueue::admit(Command& command, int set_size, bool queue) {
  const std::lock_guard lock(mutex_);
  if (Status refused = refusal_locked(command.set_id); !refused.ok()) return refused;
  number_unnamed(command.set_id, command.submissions);
  for (Submission& submission : command.submissions) {
    Request& request = submission.request;
    // What is wrong with a request here is wrong for everybody: all ranks are told.
    if (request.error.ok()) request.error = validate(request, set_size);
  }
  if (queue) commands_.push_back(std::move(command));
  return {};
}

bool CommandQueue::number_if(int set_id, std::string& name,
                             const std::function<bool(const std::string&)>& use) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& next = next_unnamed_[set_id];
  name = numbered(set_id, next);
  if (!use(name)) return false;
  ++next;
  return true;
}

std::vector<Command> CommandQueue::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(commands_, {});
}

void CommandQueue::restart_numbers(int set_id) {
  const std::lock_guard lock(mutex_);
  next_unnamed_[set_id] = 0;
}

void CommandQueue::forget(int set_id) {
  const std::lock_guard lock(mutex_);
  next_unnamed_.erase(set_id);
  closed_sets_.erase(set_id);
}

// Unnamed operations match by their number within the process set; a group has one number.
void CommandQueue::number_unnamed(int set_id, std::vector<Submission>& submissions) {
  if (!submissions.front().request.name.empty()) return;
  const std::string number = numbered(set_id, next_unnamed_[set_id]++);
  const bool grouped = submissions.front().request.group_size > 0;
  for (std::size_t i = 0; i < submissions.size(); ++i) {
    Request& request = submissions[i].request;
    request.name = grouped ? str(number, ".", i) : number;
    if (grouped) request.group = number;
  }
}

}  // namespace rueda
