// RUEDA_SECRET_FILE: a file that holds the job's secret, as a mounted Kubernetes Secret does.
#pragma once

#include "core/options.h"
#include "core/status.h"

namespace rueda {

// `environment` in which RUEDA_SECRET has what the file holds, without white space around it, where
// RUEDA_SECRET_FILE is set and RUEDA_SECRET is not. ErrorCode::initialization where the file cannot
// be read, is empty or may be read by every user.
[[nodiscard]] Expected<Environment> with_secret_of_file(const Environment& environment);

}  // namespace rueda
