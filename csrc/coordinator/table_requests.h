// The application's requests to tables, which are opened and closed on all ranks of a set, which
// agree on a number (see api/table_opening.h), and used in between. Any thread may call everything.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/command_sender.h"
#include "coordinator/process_sets.h"
#include "coordinator/table_client.h"
#include "coordinator/table_names.h"
#include "coordinator/table_owner.h"
#include "rueda/rueda.h"

namespace rueda {

class TableRequests {
 public:
  // Keeps references to both.
  TableRequests(CommandSender& sender, const ProcessSets& process_sets)
      : sender_(sender), process_sets_(process_sets) {}

  // What distinguishes this rank's tables.
  [[nodiscard]] TableNames& names() const { return *names_; }
  // Returns once this rank serves its shard.
  Status open(int set_id, HeldTable table);
  // The handle reports errors.
  Handle use(int set_id, std::shared_ptr<TableOperation> operation);
  void close(std::uint64_t number);

 private:
  CommandSender& sender_;
  const ProcessSets& process_sets_;
  const std::shared_ptr<TableNames> names_ = std::make_shared<TableNames>();
};

}  // namespace rueda
