// A request of the application to the engine: passed from the calling thread to the owner of the
// progress lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/open_handle.h"
#include "coordinator/point_to_point.h"
#include "coordinator/submission.h"
#include "coordinator/table_client.h"
#include "coordinator/table_owner.h"
#include "core/status.h"

namespace rueda {

struct TableCommand {
  HeldTable held{};                             // open_table; close_table: its number
  std::shared_ptr<TableOperation> operation{};  // use_table
};

struct Command {
  enum class Kind : std::uint8_t {
    submit,
    message,
    join,
    form,
    destroy,
    answer_changes,
    wake,  // a set's timeout has changed
    leave,
    abort,
    open_table,
    use_table,
    close_table,
  };
  Kind kind = Kind::submit;
  int set_id = 0;
  std::vector<Submission> submissions{};
  OpenHandle handle{};  // join, form, answer_changes
  MessageRequest message{};
  std::vector<int> ranks{};  // form
  std::string cause{};       // abort
  // For open_table, use_table and close_table. Kept separate so that all other commands stay small.
  std::unique_ptr<TableCommand> table{};

  // Completes everything that waits for this command with an error.
  void refuse(const Status& reason) const;
};

}  // namespace rueda
