// What a member of a process set contributes to a replayed batch, as it is sent along when the
// member is ready: see EagerBuffers, and backend/eager.h for what is made of it.
#pragma once

#include <cstddef>
#include <optional>

#include "coordinator/replay.h"

namespace rueda {

// The most that any member contributes; nothing where that is not known beforehand, or the batch is
// not exchanged as it is: on GPUs, in a narrower type, compressed.
[[nodiscard]] std::optional<std::size_t> contributed_bytes(const Replay::Batch& batch);

// Copies what the member `rank` contributes. Every member of the batch has its submission.
void contribute(const Replay::Batch& batch, int rank, std::byte* target);

}  // namespace rueda
