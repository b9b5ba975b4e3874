#include "coordinator/command_queue.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/strings.h"

namespace rueda {

namespace {

// Includes the set, lest equal numbers in two sets be taken for one name submitted to both.
std::string numbered(int set_id, std::uint64_t number) {
  std::string name(numbered_prefix);
  if (set_id > 0) name.append("set").append(std::to_string(set_id)).append(".");
  return name.append(std::to_string(number % numbers_of_unnamed));
}

// During execution, null means that this rank has joined, or has no use for the result. `rank`: of
// the set.
Status missing_memory(const Submission& submission, int rank) {
  const Request& request = submission.request;
  const bool has_result = request.collective == Collective::allreduce ||
                          request.collective == Collective::persistent_allreduce;
  const bool lacks_result = has_result && submission.output == nullptr;
  const bool lacks_tensor = submission.input == nullptr;
  if (!lacks_tensor && !lacks_result) return {};
  if (!has_tensor(request.collective)) return {};
  if (std::ranges::any_of(request.shape, [](std::int64_t extent) { return extent <= 0; }))
    return {};
  const std::vector<int>& leaves = request.leaf_ranks;
  const bool has_partials = leaves.empty() || std::ranges::find(leaves, rank) != leaves.end();
  if (!lacks_result && !has_partials) return {};
  return {ErrorCode::invalid_argument,
          str("the address of the ", lacks_result ? "result" : "tensor", " of ",
              to_string(request.shape), " ", name_of(request.dtype), " is null")};
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

Status CommandQueue::admit(Command& command, const ProcessSetMembers& members, bool queue) {
  const std::lock_guard lock(mutex_);
  if (Status refused = refusal_locked(command.set_id); !refused.ok()) return refused;
  number_unnamed(command.set_id, command.submissions);
  for (Submission& submission : command.submissions) {
    Request& request = submission.request;
    // An error in a request here is an error on all ranks: it travels with the request.
    if (request.error.ok()) request.error = validate(request, members.size());
    if (request.error.ok()) request.error = missing_memory(submission, members.rank);
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
