// Variables of srun and torchrun, for code that forms a rendezvous from them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/options.h"
#include "core/status.h"
#include "membership/launch.h"
#include "transport/key.h"

namespace rueda {

// Empty if not set.
[[nodiscard]] std::string value_of(const Environment& environment, std::string_view variable);

// MASTER_ADDR, without the brackets that may surround an IPv6 address. Empty if not set.
[[nodiscard]] std::string master_of(const Environment& environment);

// A key that can be derived only by processes that know `key` and see the same values in these
// variables.
[[nodiscard]] Key with_values(const Key& key, const Environment& environment,
                              std::initializer_list<std::string_view> variables);

// The nodes of an srun step. ErrorCode::invalid_argument if `launch` is not one, if PMI or PMIx is
// offered, or if it is part of a heterogeneous job, which counts only its own tasks.
[[nodiscard]] Expected<std::vector<std::string>> nodes_of_plain_step(
    const Launch& launch, const Environment& environment);

// "localhost", 127.0.0.0/8, ::1: ranks told to meet there are all on one host.
[[nodiscard]] bool is_loopback_name(std::string_view host);

}  // namespace rueda
