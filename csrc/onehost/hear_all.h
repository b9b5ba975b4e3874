// Rounds in which each rank tells all others a few words, or that it has failed.
#pragma once

#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "transport/bootstrap.h"

namespace rueda {

// Collective: what each rank has to tell, by rank. Where `own` is an error on any rank, every rank
// gets an error that names the first such rank, so that all go on alike. `round` is different each
// time.
[[nodiscard]] Expected<std::vector<std::string>> hear_all(Bootstrap& bootstrap,
                                                          const std::string& round,
                                                          const Expected<std::string>& own,
                                                          Time deadline);

}  // namespace rueda
