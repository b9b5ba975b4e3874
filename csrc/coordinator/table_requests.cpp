#include "coordinator/table_requests.h"

#include <utility>

#include "core/strings.h"

namespace rueda {

Status TableRequests::open(int set_id, HeldTable table) {
  Command command;
  command.kind = Command::Kind::open_table;
  command.set_id = set_id;
  command.table = std::make_unique<TableCommand>();
  command.table->held = std::move(table);
  return sender_.send_and_wait(std::move(command));
}

Handle TableRequests::use(int set_id, std::shared_ptr<TableOperation> operation) {
  auto handle = sender_.make_handle();
  if (!process_sets_.find(set_id)) {
    handle->complete(Status(
        ErrorCode::invalid_argument,
        str("table '", operation->use->name, "': its process set ", set_id, " has been removed")));
    return Handle(handle);
  }
  operation->handle = handle;
  Command command;
  command.kind = Command::Kind::use_table;
  command.set_id = set_id;
  command.table = std::make_unique<TableCommand>();
  command.table->operation = std::move(operation);
  sender_.send(std::move(command));
  return Handle(handle);
}

void TableRequests::close(std::uint64_t number) {
  Command command;
  command.kind = Command::Kind::close_table;
  command.table = std::make_unique<TableCommand>();
  command.table->held.number = number;
  sender_.send(std::move(command));
}

}  // namespace rueda
