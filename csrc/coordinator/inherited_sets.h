// How the ranks of a world agree which process sets it has from the world that was before it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/process_sets.h"
#include "transport/bootstrap.h"

namespace rueda {

// Collective over the ranks of the new world. `own`: what this one knew in the world before;
// nothing where it was in none. The same on all ranks, but for what each knows to be gone.
[[nodiscard]] Expected<std::shared_ptr<ProcessSets>> inherit_sets(
    Bootstrap& bootstrap, const std::optional<KnownSets>& own, Time deadline);

// What the ranks tell each other for it.
[[nodiscard]] std::vector<std::byte> encode_known_sets(const std::optional<KnownSets>& known);
// Of bytes that no rank would send: ErrorCode::initialization.
[[nodiscard]] Expected<std::optional<KnownSets>> decode_known_sets(
    std::span<const std::byte> bytes);

}  // namespace rueda
