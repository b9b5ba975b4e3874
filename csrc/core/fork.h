// Distinguishes a child made by fork() from its parent.
#pragma once

namespace rueda {

// How many times this process has come out of fork() since it, or an ancestor, first called this.
// An object that recorded a different number belongs to an ancestor. Costs one load.
[[nodiscard]] int fork_generation();

}  // namespace rueda
