// Passes XLA's requests to Rueda, and the results back to XLA.
#pragma once

#include <vector>

#include "jax/call.h"

namespace rueda::jax {

// Throws what Rueda's functions throw.
[[nodiscard]] std::vector<Handle> submit(const Call& call);

// Call once all handles are done: puts results where XLA expects them. Throws the first error.
void finish(const Call& call, const std::vector<Handle>& handles);

}  // namespace rueda::jax
