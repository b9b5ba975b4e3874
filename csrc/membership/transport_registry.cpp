#include "membership/transport_registry.h"

#include <array>

#include "transport/shm.h"

namespace rueda {

namespace {

Status can_use_mpi(const MpiCapability& mpi) {
  if (mpi.make_transport) return {};
  if (!mpi.unavailable.ok()) return mpi.unavailable;
  return Status(ErrorCode::initialization, "MPI was not started");
}

constexpr std::array rows{
    TransportRow{"shm", true, [](const MpiCapability&) { return can_use_shm(); },
                 [](Bootstrap& bootstrap, const MpiCapability&, Time deadline) {
                   return make_shm_transport(bootstrap, deadline);
                 }},
    TransportRow{"mpi", false, can_use_mpi,
                 [](Bootstrap&, const MpiCapability& mpi, Time) { return mpi.make_transport(); }},
};

}  // namespace

std::span<const TransportRow> transport_registry() {
  return rows;
}

}  // namespace rueda
