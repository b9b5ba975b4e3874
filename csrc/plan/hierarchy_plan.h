// How an allreduce across hosts is divided: into parts that overlap, and each part into a slice for
// every member of a host that carries one to the other hosts.
#pragma once

#include <cstdint>

#include "plan/algorithm_table.h"
#include "plan/ring_plan.h"
#include "plan/set_hosts.h"

namespace rueda {

// The minimum size of a part, in bytes: below it, the synchronization of a host's ranks costs more
// than overlap saves.
inline constexpr std::int64_t min_part = 1 << 20;

// The first `length` elements are cut as evenly as possible; returns cut number `index`.
[[nodiscard]] Segment cut(std::int64_t length, std::int64_t cuts, std::int64_t index);

// In how many parts `bytes` are moved if each is divided among `shares` ranks: so many that a share
// is a few chunks of `chunk_bytes`, and that there are a few parts.
[[nodiscard]] std::int64_t parts_of(std::int64_t chunk_bytes, std::int64_t bytes,
                                    std::int64_t shares);

// The same on all members. Member i of each host carries slice i of each part. With
// Algorithm::hierarchical there are as many slices as the smallest host has members, otherwise one.
// With Algorithm::tree the parts alternate between the two trees.
class HierarchyPlan {
 public:
  // `count` elements of `element` bytes, which travel over the links in chunks of at most
  // `chunk_bytes`.
  HierarchyPlan(const SetHosts& hosts, Algorithm algorithm, std::int64_t count, std::size_t element,
                std::int64_t chunk_bytes);

  [[nodiscard]] Algorithm algorithm() const { return algorithm_; }
  // The most that travels over a link at a time.
  [[nodiscard]] std::int64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] int slices() const { return slices_; }
  [[nodiscard]] std::int64_t parts() const { return parts_; }  // 0 if there are no elements
  [[nodiscard]] Segment part(std::int64_t part) const { return cut(count_, parts_, part); }
  [[nodiscard]] Segment slice(std::int64_t part, int index) const;

 private:
  std::int64_t count_;
  Algorithm algorithm_;
  std::int64_t chunk_bytes_;
  int slices_;
  std::int64_t parts_ = 0;
};

}  // namespace rueda
