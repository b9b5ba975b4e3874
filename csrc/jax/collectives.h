// Hands what one call asks for to Rueda, and what comes of it to XLA.
#pragma once

#include <vector>

#include "jax/call.h"

namespace rueda::jax {

// Throws what Rueda's functions throw.
[[nodiscard]] std::vector<Handle> submit(const Call& call);

// Once all handles are done: puts results where XLA expects them. Throws the first error.
void finish(const Call& call, const std::vector<Handle>& handles);

}  // namespace rueda::jax
