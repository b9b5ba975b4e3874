// Whether each rank of a host can have a processor to itself.
#pragma once

#include <vector>

namespace rueda {

// Processors that the calling thread may run on, ascending; empty if the system does not say.
[[nodiscard]] std::vector<int> allowed_processors();

// Whether every rank can get one of its allowed processors to itself. A rank whose processors are
// unknown takes none.
[[nodiscard]] bool can_each_have_a_processor(const std::vector<std::vector<int>>& allowed);

}  // namespace rueda
