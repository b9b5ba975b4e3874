// The bulk transports there are. A new one is a row here.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "core/clock.h"
#include "core/status.h"
#include "membership/world.h"

namespace rueda {

struct TransportRow {
  std::string_view name;  // as in Options::transport
  bool one_host_only;
  // Why this rank cannot use it; ok where it can.
  Status (*can_use)(const MpiCapability& mpi);
  // Collective.
  Expected<std::unique_ptr<Transport>> (*make)(Bootstrap& bootstrap, const MpiCapability& mpi,
                                               Time deadline);
};

// The best first.
[[nodiscard]] std::span<const TransportRow> transport_registry();

}  // namespace rueda
