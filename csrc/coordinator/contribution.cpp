#include "coordinator/contribution.h"

#include <algorithm>
#include <cstring>

namespace rueda {

std::optional<std::size_t> contributed_bytes(const Replay::Batch& batch) {
  std::size_t bytes = 0;
  for (const Replay::Member& member : batch) {
    const Response& agreed = *member.response;
    const Request& request = agreed.request;
    const bool is_compressed = request.compression.codec != CodecKind::none;
    if (request.on_gpu || request.wire || is_compressed) return std::nullopt;
    switch (request.collective) {
      case Collective::allreduce:
      case Collective::reduce_scatter:
      case Collective::broadcast: bytes += request.bytes(); break;
      case Collective::allgather:
        bytes += static_cast<std::size_t>(
                     *std::max_element(agreed.first_extents.begin(), agreed.first_extents.end())) *
                 request.row_bytes();
        break;
      default: return std::nullopt;
    }
  }
  return bytes;
}

void contribute(const Replay::Batch& batch, int rank, std::byte* target) {
  for (const Replay::Member& member : batch) {
    const Submission& submission = *member.submission;
    const Request& request = submission.request;
    const bool is_broadcast = request.collective == Collective::broadcast;
    if (is_broadcast && request.root != rank) continue;
    const std::size_t bytes = request.bytes();
    if (bytes > 0) std::memcpy(target, is_broadcast ? submission.output : submission.input, bytes);
    target += bytes;
  }
}

}  // namespace rueda
