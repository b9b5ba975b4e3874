// How the ranks of a process set open the same table.
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
  std::shared_ptr<void> name;        // reserved for this table while this lives
};

// Collective over the set. Throws on all ranks if one fails, or if they differ.
[[nodiscard]] OpenedTable open_table(const TableOptions& options, std::shared_ptr<Runtime> runtime,
                                     int set_id);

// The same, returning a table: for a world that no process set identifies.
[[nodiscard]] Table open_table_in(std::shared_ptr<Runtime> runtime, int set_id,
                                  const TableOptions& options);

// A barrier of all ranks of the set.
[[nodiscard]] Handle table_barrier(Runtime& runtime, int set_id, const std::string& name);

// Waits until it is done, successfully or not, and checks for interruptions meanwhile.
void outlast_interruptibly(const Handle& handle);
// The same, but throws its error.
void wait_interruptibly(const Handle& handle);

}  // namespace rueda
