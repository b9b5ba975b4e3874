// What a member of a process set contributes to a replayed batch, as it is sent along when the
// member is ready: see EagerBuffers, and backend/eager.h for what is made of it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "coordinator/plan_table.h"

namespace rueda {

// The most that any member contributes; nothing where that is not known beforehand, or the batch is
// not exchanged as it is: on GPUs, in a narrower type, compressed.
[[nodiscard]] std::optional<std::size_t> contributed_bytes(const ReplayPlan::Batch& batch);

// Whether what members contribute can be combined on its way: an allreduce.
[[nodiscard]] bool can_be_combined(const ReplayPlan::Batch& batch);

// Copies what the member `rank` contributes. Every member of the batch has its submission.
void contribute(const ReplayPlan::Batch& batch, int rank, std::byte* target);

// Of a batch that can be combined. Each of `contributions` and the target has contributed_bytes().
// First those of the members of one host, as they have been copied.
void combine_contributions(const ReplayPlan::Batch& batch,
                           std::span<const std::byte* const> contributions, std::byte* target);
// Then what comes of that. `contributors`: of the whole set, once these are all; otherwise 0.
// 16-bit floats are rounded each time.
void combine_partial(const ReplayPlan::Batch& batch, std::span<const std::byte* const> partial,
                     int contributors, std::byte* target);

}  // namespace rueda
