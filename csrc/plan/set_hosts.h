// The members of a process set that spans hosts, host by host. For operations that combine work of
// a host's members in its memory with transfers over the links between hosts.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/algorithm_table.h"
#include "plan/link_costs.h"

namespace rueda {

// Ring i passes once through every host: through its member i, or, on a host with fewer members, i
// modulo their number. So data that is divided among rings crosses each host's link once.
class SetHosts {
 public:
  // `members`: for each host all its members, as ranks within the set; this rank is number `rank`
  // on `host`. `ranks`: their world ranks. At least one of each.
  SetHosts(std::vector<std::vector<int>> members, int host, int rank, const std::vector<int>& ranks,
           AlgorithmTable algorithms, AlgorithmTable alltoall, const LinkCosts& costs);

  [[nodiscard]] int hosts() const { return static_cast<int>(parts_.size()); }
  [[nodiscard]] int host() const { return host_; }  // this rank's
  [[nodiscard]] int rank() const { return rank_; }  // index among its host's members
  // How many members a host has.
  [[nodiscard]] int size(int host) const { return static_cast<int>(part(host).size()); }
  [[nodiscard]] int size() const { return size(host_); }
  [[nodiscard]] int min_size() const { return min_size_; }
  [[nodiscard]] int max_size() const { return max_size_; }
  // The rank within the set of a host's member.
  [[nodiscard]] int member(int host, int index) const {
    return part(host)[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] int host_of(int member) const;
  // The index of a member on its host.
  [[nodiscard]] int index_of(int member) const;
  // The index of the host's member that takes part in ring i.
  [[nodiscard]] int member_of_ring(int host, int ring) const { return ring % size(host); }

  // World ranks: of this host's members, and of those that take part in a ring, by host.
  [[nodiscard]] const std::vector<int>& here() const { return here_; }
  [[nodiscard]] const std::vector<int>& across(int ring) const {
    return across_[static_cast<std::size_t>(ring)];
  }

  // Which algorithm the set uses between hosts, by size.
  [[nodiscard]] const AlgorithmTable& algorithms() const { return algorithms_; }
  // For an all-to-all, by the bytes that a rank has for one of another host.
  [[nodiscard]] const AlgorithmTable& alltoall() const { return alltoall_; }
  // The most that travels over a link at a time.
  [[nodiscard]] std::int64_t chunk_bytes() const { return costs_.chunk; }
  // The same along trees, for `bytes` in all.
  [[nodiscard]] std::int64_t tree_chunk(std::int64_t bytes) const {
    return rueda::tree_chunk(costs_, hosts(), bytes);
  }
  // Whether this many bytes may travel with messages that ranks exchange anyway: if latency decides
  // how they are exchanged, and this is no slower.
  [[nodiscard]] bool may_be_eager(std::size_t bytes) const {
    const auto length = static_cast<std::int64_t>(bytes);
    return algorithms_.choose(length) == Algorithm::doubling &&
           length <= eager_limit(costs_, hosts());
  }

 private:
  [[nodiscard]] const std::vector<int>& part(int host) const {
    return parts_[static_cast<std::size_t>(host)];
  }

  const std::vector<std::vector<int>> parts_;  // ranks within the set
  const int host_;
  const int rank_;
  const AlgorithmTable algorithms_;
  const AlgorithmTable alltoall_;
  const LinkCosts costs_;
  int min_size_ = 0;
  int max_size_ = 0;
  std::vector<int> here_;
  std::vector<std::vector<int>> across_;  // by ring
  struct Place {
    int host;
    int index;
  };
  std::vector<Place> places_;  // by rank within the set
};

}  // namespace rueda
