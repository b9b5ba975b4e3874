// The ranks of the world that are on this rank's host, and the memory that they share. Every rank
// belongs to one such group, be the world on one host or on many.
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

// Some ranks of one host as members of its memory.
struct HostMembers {
  std::shared_ptr<HostMemory> memory;  // null: they are not all of this host, or it shares none
  std::vector<int> ranks;              // within `memory`, in the order of the members

  explicit operator bool() const { return memory != nullptr; }
};

// The members of a process set as those who share memory with each other, one part for each host
// where they do, and one for each rank that shares none.
struct HostParts {
  HostMembers own;           // the members of this rank's part; without memory where it is alone
  int rank = 0;              // of this one among them
  int index = 0;             // of its part
  std::vector<int> leaders;  // of each part its first member, within the set; ascending
  std::vector<std::vector<int>> members =
      {};  // of each part all of them, within the set; ascending
};

class HostGroup {
 public:
  // Of a rank that shares memory with nobody.
  HostGroup() = default;

  // Collective over all ranks of `world`; `host_of` gives an index of each rank's host. Where the
  // ranks of a host cannot share memory, they are a group without. Fails where the ranks of the
  // world do not meet until the deadline.
  static Expected<HostGroup> form(Bootstrap& world, const std::vector<int>& host_of, Time deadline);
  // Collective over all ranks of `world`, too: what things cost within each host, as its first rank
  // has measured it. Fails on all ranks of a host where one does not answer.
  Status measure(Bootstrap& world, Time deadline);
  // Instead of measure(): what its ranks have measured before.
  void take_costs(const HostCosts& costs) { costs_ = costs; }
  // Why they share no memory; empty where they do.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }
  // All ranks of the world know that these share no memory, and so no rank of their hosts does.
  void share_nothing(const std::vector<int>& world_ranks);

  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }  // of the world, ascending
  // Of all ranks of the host, in their order; null where they share none.
  [[nodiscard]] const std::shared_ptr<HostMemory>& memory() const { return memory_; }
  // Calls `watch` for each other process of these ranks that this one sees, with its rank of the
  // world and with what tells of its end.
  void for_each_end(const std::function<void(int world_rank, PeerEnd end)>& watch) const;
  // As all ranks of the host have them; zeros where nothing was measured.
  [[nodiscard]] const HostCosts& costs() const { return costs_; }

  // Whether they share memory and are the whole world.
  [[nodiscard]] bool is_world(int world_size) const {
    return memory_ != nullptr && static_cast<int>(ranks_.size()) == world_size;
  }
  // A rank of the world within the memory; nothing where it does not share it.
  [[nodiscard]] std::optional<int> rank_of(int world_rank) const;
  [[nodiscard]] HostMembers members(const std::vector<int>& world_ranks) const;
  // Whether ranks have been asked on which host they are: only then parts() tells more than that
  // each rank is a part.
  [[nodiscard]] bool knows_hosts() const { return !ranks_.empty(); }
  // `member`: the index of this rank.
  [[nodiscard]] HostParts parts(const std::vector<int>& world_ranks, int member) const;

 private:
  [[nodiscard]] int first_of_part(int world_rank) const;

  std::vector<int> ranks_;
  // Of each rank of the world, the first that it shares memory with; empty where nobody shares any.
  std::vector<int> first_of_part_;
  std::shared_ptr<HostMemory> memory_;
  std::string obstacle_ = "it shares no memory";
  HostCosts costs_;
};

}  // namespace rueda
