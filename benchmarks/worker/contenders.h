// The contenders by name; each is a file of its own.
#pragma once

#include <memory>
#include <string>

#include "contender.h"

namespace rueda_bench {

// Rueda: "direct" calls or "named" ones.
[[nodiscard]] std::unique_ptr<Contender> make_rueda(const std::string& path);
// MPI, from the shared object named.
[[nodiscard]] std::unique_ptr<Contender> make_mpi(const std::string& library);
// Loops that measure the machine; "RANK/SIZE" of this process.
[[nodiscard]] std::unique_ptr<Contender> make_limits(const std::string& place);

// Joins the group. Throws std::runtime_error, among others for an unknown name.
[[nodiscard]] std::unique_ptr<Contender> make_contender(const std::string& name,
                                                        const std::string& argument);

}  // namespace rueda_bench
