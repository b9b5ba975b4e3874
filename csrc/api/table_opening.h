// How the ranks of a process set come to the same table.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/runtime.h"
#include "coordinator/table_owner.h"
#include "rueda/server.h"

namespace rueda {

struct OpenedTable {
  std::shared_ptr<Runtime> runtime;
  int set_id = 0;
  HeldTable held;
  std::vector<std::int64_t> bounds;  // empty for rows
};

// Collective over the set. Throws on all ranks where one cannot, or where they differ.
[[nodiscard]] OpenedTable open_table(const TableOptions& options);

// Waits as Handle::wait(), and looks for interruptions.
void wait_interruptibly(const Handle& handle);

}  // namespace rueda
