// Lets the ranks of a group find each other through the bootstrap of all ranks.
//
// Keys belong to the group, but a barrier always covers all ranks. So every rank belongs to exactly
// one group, all groups have the same number of barriers, and a group that needs fewer still takes
// part in the rest: see finish().
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/bootstrap.h"

namespace rueda {

class GroupBootstrap final : public Bootstrap {
 public:
  // `ranks`: the group's ranks in `all`, including this one, ascending. `name` prefixes the keys; a
  // different one for each use. `barriers`: how many there are.
  GroupBootstrap(Bootstrap& all, std::vector<int> ranks, std::string name, int barriers);

  [[nodiscard]] std::string_view name() const override { return all_.name(); }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int world_rank(int rank) const override {
    return all_.world_rank(ranks_[static_cast<std::size_t>(rank)]);
  }

  Status put(const std::string& key, const std::string& value) override;
  Expected<std::string> get(const std::string& key) override;
  Status barrier(Time deadline) override;
  [[nodiscard]] std::string secret() const override { return all_.secret(); }

  // Takes part in the remaining barriers.
  Status finish(Time deadline);

 private:
  Bootstrap& all_;
  const std::vector<int> ranks_;
  const int rank_;
  const std::string prefix_;
  int barriers_;  // remaining
};

}  // namespace rueda
