#include "plan/hierarchy_plan.h"

#include <algorithm>

namespace rueda {

namespace {

// Chunks per share of a part, so that one is on the wire while another is reduced.
constexpr std::int64_t chunks_of_share = 4;
// The minimum number of parts, unless they become too small.
constexpr std::int64_t few_parts = 4;

}  // namespace

Segment cut(std::int64_t length, std::int64_t cuts, std::int64_t index) {
  const std::int64_t each = length / cuts;
  const std::int64_t longer = length % cuts;
  return {index * each + std::min(index, longer), each + (index < longer ? 1 : 0)};
}

std::int64_t parts_of(std::int64_t chunk_bytes, std::int64_t bytes, std::int64_t shares) {
  const std::int64_t share = std::min(chunks_of_share * chunk_bytes, bytes / shares + 1);
  const std::int64_t max_part = std::max(min_part, bytes / few_parts);
  const std::int64_t part = std::clamp(share * shares, min_part, max_part);
  return (bytes + part - 1) / part;
}

HierarchyPlan::HierarchyPlan(const SetHosts& hosts, Algorithm algorithm, std::int64_t count,
                             std::size_t element, std::int64_t chunk_bytes)
    : count_(count),
      algorithm_(algorithm),
      chunk_bytes_(chunk_bytes),
      slices_(algorithm == Algorithm::hierarchical ? hosts.min_size() : 1) {
  if (count == 0) return;
  const std::int64_t bytes = count * static_cast<std::int64_t>(element);
  if (algorithm == Algorithm::doubling || algorithm == Algorithm::halving) {
    parts_ = 1;
  } else if (algorithm == Algorithm::tree) {
    parts_ = 2 * parts_of(chunk_bytes, (bytes + 1) / 2, 1);
    chunk_bytes_ = std::min(chunk_bytes, hosts.tree_chunk(bytes));
  } else {
    parts_ = parts_of(chunk_bytes, bytes, std::int64_t{slices_} * hosts.hosts());
  }
}

Segment HierarchyPlan::slice(std::int64_t part, int index) const {
  const Segment whole = this->part(part);
  const Segment slice = cut(whole.count, slices_, index);
  return {whole.offset + slice.offset, slice.count};
}

}  // namespace rueda
