// The ranks of the world that are on this rank's host, and the memory that they share. Every rank
// belongs to one such group, be the world on one host or on many.
#pragma once

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
  // Why they share no memory; empty where they do.
  [[nodiscard]] const std::string& obstacle() const { return obstacle_; }
  // Does without memory. On all ranks of the host.
  void share_nothing() { memory_.reset(); }

  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }  // of the world, ascending
  // Of all ranks of the host, in their order; null where they share none.
  [[nodiscard]] const std::shared_ptr<HostMemory>& memory() const { return memory_; }
  // As all ranks of the host have them; zeros where nothing was measured.
  [[nodiscard]] const HostCosts& costs() const { return costs_; }

  // Whether they share memory and are the whole world.
  [[nodiscard]] bool is_world(int world_size) const {
    return memory_ != nullptr && static_cast<int>(ranks_.size()) == world_size;
  }
  // A rank of the world within the memory; nothing where it does not share it.
  [[nodiscard]] std::optional<int> rank_of(int world_rank) const;
  [[nodiscard]] HostMembers members(const std::vector<int>& world_ranks) const;

 private:
  std::vector<int> ranks_;
  std::shared_ptr<HostMemory> memory_;
  std::string obstacle_ = "it shares no memory";
  HostCosts costs_;
};

}  // namespace rueda
