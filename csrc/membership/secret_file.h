// RUEDA_SECRET_FILE: a file with the job's secret, such as a mounted Kubernetes Secret.
#pragma once

#include "core/options.h"
#include "core/status.h"

namespace rueda {

// If RUEDA_SECRET_FILE is set and RUEDA_SECRET is not: `environment` with RUEDA_SECRET set to the
// file's contents, stripped of white space. ErrorCode::initialization if the file cannot be read,
// is empty, or is readable by every user.
[[nodiscard]] Expected<Environment> with_secret_of_file(const Environment& environment);

}  // namespace rueda
