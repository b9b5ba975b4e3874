// Puts the shards of a table into memory that the ranks of a host share.
//
// A shard is shared if its owner shares memory with other ranks of the table, the rule is one of
// Rueda's, and nothing depends on who adds when: no ring order and no replica. It has at most the
// elements below, or rows of at most the bytes below: beyond that, requests are as fast, and the
// caller need not wait for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/table_owner.h"
#include "onehost/host_memory.h"
#include "rueda/server.h"
#include "server/direct_part.h"

namespace rueda {

class Runtime;

inline constexpr std::int64_t shared_part_elements = 256 << 10;
inline constexpr std::int64_t shared_row_bytes = 4096;  // including what the rule keeps

class TableSharing {
 public:
  // For the table `held`.
  TableSharing(const TableOptions& options, const std::vector<std::int64_t>& bounds,
               const Runtime& runtime, const HeldTable& held);

  // Memory for this rank's shard. Never fails: what cannot be shared is private.
  [[nodiscard]] ShardMemory own_memory();
  // Once this rank's shard is created: lets the others use it.
  void publish();
  // Once all ranks have published: finds the shards that this rank may access directly.
  void find_parts(TableUse& use, const AppliedRule& rule) const;

 private:
  struct Publication;

  [[nodiscard]] DirectPart::Shape shape(std::size_t index) const;
  [[nodiscard]] bool may_share(std::size_t index) const;

  const TableOptions& options_;
  const std::vector<std::int64_t>& bounds_;
  const std::vector<int> ranks_;              // world ranks
  const std::size_t rank_;                    // this rank's index among them
  std::shared_ptr<Publication> publication_;  // null if nothing is shared
  std::vector<std::optional<int>> places_;    // each rank's place within the host's memory
  SharedPart* own_ = nullptr;
};

}  // namespace rueda
