#include "onehost/host_tensors.h"

#include <cstring>
#include <utility>

namespace rueda {

HostTensors::HostTensors(const HostChannel& channel, DataType dtype, std::vector<Piece> pieces,
                         std::shared_ptr<const LeafPlan> leaves)
    : channel_(channel),
      element_(size_of(dtype)),
      pieces_(std::move(pieces)),
      leaves_(std::move(leaves)) {
  for (const Piece& piece : pieces_) count_ += piece.count;
}

Exposure HostTensors::exposure_of(int member, std::size_t piece) const {
  Exposure exposure;
  const std::byte* source =
      pieces_.size() == 1 ? channel_.memory().line_of(member) : channel_.memory().table_of(member);
  std::memcpy(&exposure, source + piece * sizeof exposure, sizeof exposure);
  return exposure;
}

}  // namespace rueda
