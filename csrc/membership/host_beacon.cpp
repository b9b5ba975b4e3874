#include "membership/host_beacon.h"

#include <set>

#include "core/strings.h"

namespace rueda {

namespace {

bool share_a_host(const std::vector<RankFacts>& ranks) {
  std::set<std::string> hosts;
  for (const RankFacts& facts : ranks) hosts.insert(facts.host_identity);
  return hosts.size() < ranks.size();
}

// The first of the ranks that claim to be on this rank's host and really are. All ranks of a host
// find the same one.
int first_on_host(int rank, const std::vector<RankFacts>& ranks) {
  const RankFacts& own = ranks[static_cast<std::size_t>(rank)];
  for (int peer = 0; peer < rank; ++peer) {
    const RankFacts& other = ranks[static_cast<std::size_t>(peer)];
    if (other.host_identity == own.host_identity && is_served(other.beacon)) return peer;
  }
  return rank;
}

}  // namespace

Expected<Listener> light_beacon(int rank) {
  return listen_on(str("unix:@rueda-host-", rank, "-", random_name()));
}

Status confirm_hosts(Bootstrap& bootstrap, std::vector<RankFacts>& ranks, Time deadline) {
  if (!share_a_host(ranks)) return {};
  const int rank = bootstrap.rank();
  const auto first =
      bootstrap.allgather("host of", std::to_string(first_on_host(rank, ranks)), deadline);
  if (!first.ok()) return first.status();
  for (std::size_t peer = 0; peer < ranks.size(); ++peer) {
    // Keeps claims apart: a rank that sends nonsense does not join another's host.
    ranks[peer].host_identity += "/" + first.value()[peer];
  }
  return {};
}

}  // namespace rueda
