// What the variables of srun and torchrun tell, for those that make a rendezvous of it.
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

// Empty where it is not set.
[[nodiscard]] std::string value_of(const Environment& environment, std::string_view variable);

// A key that only those derive who find the same values in these variables, and know `key`.
[[nodiscard]] Key with_values(const Key& key, const Environment& environment,
                              std::initializer_list<std::string_view> variables);

// The nodes of a step of srun. ErrorCode::invalid_argument where `launch` is none, or PMI or PMIx
// is offered, or it is a component of a heterogeneous job, which counts its own tasks only.
[[nodiscard]] Expected<std::vector<std::string>> nodes_of_plain_step(
    const Launch& launch, const Environment& environment);

// "localhost", 127.0.0.0/8, ::1: whoever is told to meet there is on one host.
[[nodiscard]] bool is_loopback_name(std::string_view host);

}  // namespace rueda
