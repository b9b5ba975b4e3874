#include "plan/fusion_plan.h"

namespace rueda {

namespace {

bool is_fusable(const Response& response) {
  return response.kind == ResponseKind::execute &&
         response.request.collective == Collective::allreduce;
}

bool belong_together(const Response& left, const Response& right) {
  return left.request.dtype == right.request.dtype && left.request.op == right.request.op &&
         left.request.prescale == right.request.prescale &&
         left.request.postscale == right.request.postscale && left.absent == right.absent;
}

}  // namespace

std::vector<Fusion> fuse(const ResponseList& responses, std::int64_t threshold) {
  const auto limit = static_cast<std::size_t>(threshold);
  std::vector<Fusion> fusions;
  std::vector<bool> taken(responses.size(), false);
  for (std::size_t first = 0; first < responses.size(); ++first) {
    if (taken[first]) continue;
    Fusion fusion{{first}};
    std::size_t bytes = responses[first].request.bytes();
    for (std::size_t next = first + 1; next < responses.size() && is_fusable(responses[first]);
         ++next) {
      const Response& candidate = responses[next];
      if (taken[next] || !is_fusable(candidate) || !belong_together(responses[first], candidate) ||
          bytes + candidate.request.bytes() > limit) {
        continue;
      }
      taken[next] = true;
      bytes += candidate.request.bytes();
      fusion.members.push_back(next);
    }
    fusions.push_back(std::move(fusion));
  }
  return fusions;
}

std::vector<std::int64_t> fused_offsets(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

}  // namespace rueda
