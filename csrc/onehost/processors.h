// Whether each rank of a host can have a processor to itself.
#pragma once

#include <vector>

namespace rueda {

// Processors that the calling thread may run on, in ascending order; empty where the system does
// not say.
[[nodiscard]] std::vector<int> allowed_processors();

// Whether every rank can be given one of its allowed processors that no other has. A rank whose
// processors are not known takes none away.
[[nodiscard]] bool can_each_have_a_processor(const std::vector<std::vector<int>>& allowed);

}  // namespace rueda
