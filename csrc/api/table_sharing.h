// How the parts of a table come to lie in memory that the ranks of a host share.
//
// A part is shared where its owner shares memory with others of the table's ranks, where the rule
// is one of Rueda's, and where nothing depends on who adds when: there is no order of the ring and
// no replica. It is of at most so many elements, or of rows of at most so many bytes: for more,
// requests are as quick, and the caller does not wait for them.
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
inline constexpr std::int64_t shared_row_bytes = 4096;  // with what the rule keeps

class TableSharing {
 public:
  // For a table of these ranks of the world under this number.
  TableSharing(const TableOptions& options, const std::vector<std::int64_t>& bounds,
               const Runtime& runtime, const HeldTable& held);

  // Where the own part is to lie. Never fails: what cannot be shared is not.
  [[nodiscard]] ShardMemory own_memory();
  // Once the own part is made: the others may use it.
  void publish();
  // Once all ranks have: the parts that this rank may work on by itself.
  void find_parts(TableUse& use, const AppliedRule& rule) const;

 private:
  struct Publication;

  [[nodiscard]] DirectPart::Shape shape(std::size_t index) const;
  [[nodiscard]] bool may_share(std::size_t index) const;

  const TableOptions& options_;
  const std::vector<std::int64_t>& bounds_;
  const std::vector<int> ranks_;              // of the world
  const std::size_t rank_;                    // of this one among them
  std::shared_ptr<Publication> publication_;  // null where nothing is shared
  std::vector<std::optional<int>> places_;    // of each rank within the host's memory
  SharedPart* own_ = nullptr;
};

}  // namespace rueda
