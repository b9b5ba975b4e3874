// Passes XLA's requests to Rueda, and the results back to XLA.
#pragma once

#include <vector>

#include "jax/call.h"

namespace rueda::jax {

// Tells which world the process is in, as Python counts worlds; 0 once it has been left.
void set_world(int number);

// Notes the call's place in its process set, which the world in which the function was traced does
// not tell. Throws InvalidArgumentError if the set's number is from a world that has been left.
void locate(Call& call);

// Whether ranks compare their trees before they submit the call. The tensors of an allreduce are
// one group, which compares them on its own.
[[nodiscard]] bool is_compared_first(const Call& call);

// Compares the ranks' trees. Once the handle is done, require_same_tree() throws if they differ.
[[nodiscard]] Handle compare_trees(const Call& call);
void require_same_tree(const Call& call, const Handle& compared);

// Throws what Rueda's functions throw.
[[nodiscard]] std::vector<Handle> submit(const Call& call);

// Call once all handles are done: puts results where XLA expects them. Throws the first error.
void finish(const Call& call, const std::vector<Handle>& handles);

}  // namespace rueda::jax
