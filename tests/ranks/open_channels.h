// Channels of all ranks of a host in one thread, which drives them in the order a test needs.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <vector>

#include "onehost/channel.h"
#include "ranks/rank_threads.h"
#include "transport/inproc.h"

namespace rueda::test {

inline std::vector<std::unique_ptr<HostChannel>> open_channels(int size, std::size_t slot) {
  InprocHub hub(size);
  std::vector<std::shared_ptr<HostMemory>> hosts(static_cast<std::size_t>(size));
  run_ranks(size, [&](int rank) {
    auto host = HostMemory::form(*hub.make_bootstrap(rank), soon());
    host.status().throw_if_error();
    hosts[static_cast<std::size_t>(rank)] = host.value();
  });
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::unique_ptr<HostChannel>> channels;
  for (int rank = 0; rank < size; ++rank) {
    CHECK((channels.empty() || !channels.front()->is_open()));
    channels.push_back(std::make_unique<HostChannel>(hosts[static_cast<std::size_t>(rank)], members,
                                                     rank, 9, HostChannel::WokenBy::channel, slot));
  }
  for (const auto& channel : channels) REQUIRE(channel->is_open());
  return channels;
}

}  // namespace rueda::test
