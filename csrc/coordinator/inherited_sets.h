// How the ranks of a world agree on the process sets that it inherits from the world before it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/process_sets.h"
#include "transport/bootstrap.h"

namespace rueda {

// Collective over the ranks of the new world. `own`: what this rank knew in the world before;
// nothing if it was in none. The result is the same on all ranks, except for what each knows to be
// gone.
[[nodiscard]] Expected<std::shared_ptr<ProcessSets>> inherit_sets(
    Bootstrap& bootstrap, const std::optional<KnownSets>& own, Time deadline);

// What the ranks exchange for it.
[[nodiscard]] std::vector<std::byte> encode_known_sets(const std::optional<KnownSets>& known);
// Fails with ErrorCode::initialization on bytes that no rank would send.
[[nodiscard]] Expected<std::optional<KnownSets>> decode_known_sets(
    std::span<const std::byte> bytes);

}  // namespace rueda
