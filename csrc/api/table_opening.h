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
  std::shared_ptr<void> name;        // which no other table has while this lives
};

// Collective over the set. Throws on all ranks where one cannot, or where they differ.
[[nodiscard]] OpenedTable open_table(const TableOptions& options, std::shared_ptr<Runtime> runtime,
                                     int set_id);

// The same as a table: of a world that is not found by a process set.
[[nodiscard]] Table open_table_in(std::shared_ptr<Runtime> runtime, int set_id,
                                  const TableOptions& options);

// All ranks of the set come to it.
[[nodiscard]] Handle table_barrier(Runtime& runtime, int set_id, const std::string& name);

// Waits until it is done, well or with an error, and looks for interruptions meanwhile.
void outlast_interruptibly(const Handle& handle);
// The same, and throws its error.
void wait_interruptibly(const Handle& handle);

}  // namespace rueda
