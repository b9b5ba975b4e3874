// The ranks of the world on this rank's host, and the memory that they share. Every rank belongs to
// exactly one such group.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "onehost/cost_model.h"
#include "onehost/host_memory.h"
#include "transport/bootstrap.h"

namespace rueda {

// Some ranks of one host, as members of its memory.
struct HostMembers {
  std::shared_ptr<HostMemory> memory;  // null: not all on this host, or it shares none
  std::vector<int> ranks;              // within `memory`, in member order

  explicit operator bool() const { return memory != nullptr; }
};

// A process set divided into parts that share memory: one part per host that does, and one per rank
// that shares none.
struct HostParts {
  HostMembers own;           // members of this rank's part; no memory if it is alone
  int rank = 0;              // this rank's index in `own`
  int index = 0;             // of its part
  std::vector<int> leaders;  // first member of each part, as set ranks; ascending
  std::vector<std::vector<int>> members = {};  // all members of each part, as set ranks; ascending
};

class HostGroup {
 public:
  // For a rank that shares no memory.
  HostGroup() = default;

  // Collective over all ranks of `world`; `host_of` maps each rank to its host's index. If the
  // ranks of a host cannot share memory, their group has none. Fails if the ranks do not meet
  // before the deadline.
  static Expected<HostGroup> form(Bootstrap& world, const std::vector<int>& host_of, Time deadline);
  // Also collective over all ranks of `world`: measures each host's costs on its first rank. Fails
  // on all ranks of a host if one does not answer.
  Status measure(Bootstrap& world, Time deadline);
  // Instead of measure(): uses the results of an earlier measurement.
  void take_costs(const HostCosts& costs) { costs_ = costs; }
  // Why the ranks share no memory; empty if they do.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }
  // Declares, on all ranks of the world, that these ranks and all others on their hosts share no
  // memory.
  void share_nothing(const std::vector<int>& world_ranks);

  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }  // in the world, ascending
  // Includes all ranks of the host, in order; null if they share none.
  [[nodiscard]] const std::shared_ptr<HostMemory>& memory() const { return memory_; }
  // Calls `watch` for each process of these ranks, other than its own, that this one can see, with
  // its world rank and what reports its end.
  void for_each_end(const std::function<void(int world_rank, PeerEnd end)>& watch) const;
  // Same on all ranks of the host; zeros if nothing was measured.
  [[nodiscard]] const HostCosts& costs() const { return costs_; }

  // Whether they share memory and make up the whole world.
  [[nodiscard]] bool is_world(int world_size) const {
    return memory_ != nullptr && static_cast<int>(ranks_.size()) == world_size;
  }
  // Rank of `world_rank` within the memory; nullopt if it does not share it.
  [[nodiscard]] std::optional<int> rank_of(int world_rank) const;
  [[nodiscard]] HostMembers members(const std::vector<int>& world_ranks) const;
  // Whether the ranks were asked for their hosts. If not, parts() makes each rank a part of its
  // own.
  [[nodiscard]] bool knows_hosts() const { return !ranks_.empty(); }
  // `member`: this rank's index.
  [[nodiscard]] HostParts parts(const std::vector<int>& world_ranks, int member) const;

 private:
  [[nodiscard]] int first_of_part(int world_rank) const;

  std::vector<int> ranks_;
  // For each world rank, the first rank it shares memory with; empty if no rank shares any.
  std::vector<int> first_of_part_;
  std::shared_ptr<HostMemory> memory_;
  std::string obstacle_ = "it shares no memory";
  HostCosts costs_;
};

}  // namespace rueda
