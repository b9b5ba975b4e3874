#include "plan/fusion_plan.h"

#include <algorithm>
#include <bit>
#include <list>
#include <map>
#include <tuple>

namespace rueda {

namespace {

// How many batches of one kind stay open for a tensor that still fits; keeps the work linear.
constexpr std::size_t look_ahead = 16;

bool is_fusable(const Response& response) {
  return response.kind == ResponseKind::execute &&
         response.request.collective == Collective::allreduce;
}

// What the members of a batch share. Factors are compared by their bits, which are ordered even for
// NaN.
auto kind_of(const Response& response) {
  const Request& request = response.request;
  return std::tuple(request.on_gpu, request.priority, request.dtype, request.wire,
                    request.compression.codec,
                    std::bit_cast<std::uint64_t>(request.compression.fraction), request.leaf_ranks,
                    request.op, std::bit_cast<std::uint64_t>(request.prescale),
                    std::bit_cast<std::uint64_t>(request.postscale), response.absent);
}

struct OpenBatch {
  std::size_t fusion;
  std::size_t room;
};

}  // namespace

std::vector<Fusion> fuse(const ResponseList& responses, std::int64_t threshold) {
  std::vector<const Response*> each;
  each.reserve(responses.size());
  for (const Response& response : responses) each.push_back(&response);
  return fuse(each, threshold);
}

std::vector<Fusion> fuse(std::span<const Response* const> responses, std::int64_t threshold) {
  const auto limit = static_cast<std::size_t>(std::max<std::int64_t>(0, threshold));
  std::vector<Fusion> fusions;
  std::map<decltype(kind_of(*responses.front())), std::list<OpenBatch>> open_batches;
  for (std::size_t index = 0; index < responses.size(); ++index) {
    const bool fusable = is_fusable(*responses[index]);
    const std::size_t bytes = fusable ? responses[index]->request.bytes() : limit;
    if (!fusable || bytes >= limit) {
      fusions.push_back({{index}});
      continue;
    }
    std::list<OpenBatch>& open = open_batches[kind_of(*responses[index])];
    const auto batch = std::find_if(open.begin(), open.end(),
                                    [&](const OpenBatch& it) { return bytes <= it.room; });
    if (batch != open.end()) {
      fusions[batch->fusion].members.push_back(index);
      batch->room -= bytes;
      continue;
    }
    open.push_back({fusions.size(), limit - bytes});
    fusions.push_back({{index}});
    if (open.size() > look_ahead) open.pop_front();
  }
  return fusions;
}

}  // namespace rueda
