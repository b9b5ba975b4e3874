#include "backend/set_hosts.h"

#include <algorithm>
#include <utility>

namespace rueda {

SetHosts::SetHosts(const HostParts& parts, const std::vector<int>& ranks, AlgorithmTable algorithms,
                   const LinkCosts& costs)
    : parts_(parts.members),
      host_(parts.index),
      rank_(parts.rank),
      algorithms_(std::move(algorithms)),
      costs_(costs),
      places_(ranks.size()) {
  const auto world_rank = [&](int member) { return ranks[static_cast<std::size_t>(member)]; };
  min_size_ = max_size_ = size(0);
  for (int host = 0; host < hosts(); ++host) {
    min_size_ = std::min(min_size_, size(host));
    max_size_ = std::max(max_size_, size(host));
    for (int index = 0; index < size(host); ++index) {
      places_[static_cast<std::size_t>(member(host, index))] = {host, index};
    }
  }
  for (const int member : part(host_)) here_.push_back(world_rank(member));
  across_.resize(static_cast<std::size_t>(max_size_));
  for (int ring = 0; ring < max_size_; ++ring) {
    for (int host = 0; host < hosts(); ++host) {
      const int index = member_of_ring(host, ring);
      across_[static_cast<std::size_t>(ring)].push_back(world_rank(member(host, index)));
    }
  }
}

int SetHosts::host_of(int member) const {
  return places_[static_cast<std::size_t>(member)].host;
}

int SetHosts::index_of(int member) const {
  return places_[static_cast<std::size_t>(member)].index;
}

Lane lane_within(const Lane& lane, HostChannel* channel) {
  Lane within = lane;
  within.members = &lane.hosts->here();
  within.rank = lane.hosts->rank();
  within.channel = channel;
  within.hosts = nullptr;
  return within;
}

Lane lane_across(const Lane& lane, int ring) {
  Lane across = lane;
  across.members = &lane.hosts->across(ring);
  across.rank = lane.hosts->host();
  across.channel = nullptr;
  across.hosts = nullptr;
  return across;
}

}  // namespace rueda
