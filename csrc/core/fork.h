// Telling a child made by fork() from its parent.
#pragma once

namespace rueda {

// How many times this process has come out of fork() since it, or the ancestor that did, first
// asked. What has noted another number belongs to an ancestor. Costs a load.
[[nodiscard]] int fork_generation();

}  // namespace rueda
