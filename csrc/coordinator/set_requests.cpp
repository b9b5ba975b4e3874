#include "coordinator/set_requests.h"

#include <utility>

#include "core/strings.h"

namespace rueda {

Status SetRequests::form(int id, const std::vector<int>& ranks) {
  Command command;
  command.kind = Command::Kind::form;
  command.set_id = id;
  command.ranks = ranks;
  return sender_.send_and_wait(std::move(command));
}

Status SetRequests::destroy(int id) {
  if (id < first_formed) {
    return {ErrorCode::invalid_argument,
            str("process set ", id, " is not a group: use remove_process_set()")};
  }
  return end(id);
}

void SetRequests::end_added() {
  for (const int id : process_sets_.ids()) {
    // Fails only if the world is broken.
    if (id != 0 && id < first_formed) (void)end(id);
  }
}

Status SetRequests::set_timeout(int id, Duration timeout) {
  const auto members = process_sets_.find(id);
  if (!members) return process_sets_.missing(id);
  members->timeout->set(timeout);
  Command command;
  command.kind = Command::Kind::wake;
  sender_.send(std::move(command));
  return {};
}

void SetRequests::take_back() {
  process_sets_.take_back();
  Command command;
  command.kind = Command::Kind::answer_changes;
  // Waits, so that this does not answer changes made during the next offer.
  (void)sender_.send_and_wait(std::move(command));
}

Status SetRequests::end(int id) {
  if (Status status = process_sets_.remove(id); !status.ok()) return status;
  Command command;
  command.kind = Command::Kind::destroy;
  command.set_id = id;
  sender_.send(std::move(command));
  return {};
}

}  // namespace rueda
