// Maps tags to MPI's, which are integers up to MPI_TAG_UB. Messages in flight between two ranks at
// the same time get distinct tags.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "plan/set_slots.h"
#include "transport/tag.h"

namespace rueda::mpi {

// MPI tags stay below this, which every MPI in use allows.
inline constexpr std::uint64_t tag_limit = std::uint64_t{1} << 29;

// Each slot of a process set gets a share of the tags, and each stream a part of the share, through
// which its operations cycle; that many are never in flight. Messages outside sets have a share as
// well.
inline constexpr std::uint64_t tag_shares = 2 * process_set_limit + 2;
inline constexpr std::uint64_t tags_per_share = tag_limit / tag_shares;
inline constexpr std::uint64_t streams_per_share = 4;
inline constexpr std::uint64_t tags_per_stream = tags_per_share / streams_per_share;

[[nodiscard]] constexpr int mpi_tag(const Tag& tag) {
  const auto share = tag.group < 0              ? 2 * process_set_limit - 1 - tag.group
                     : tag.group < first_formed ? slot_of(tag.group)
                                                : slot_of(tag.group) + process_set_limit;
  const std::uint64_t number = tag.sequence * parts_under_way + tag.part % parts_under_way;
  const std::uint64_t place = static_cast<std::uint64_t>(share) * streams_per_share + tag.stream;
  return static_cast<int>(place * tags_per_stream + number % tags_per_stream);
}

}  // namespace rueda::mpi
