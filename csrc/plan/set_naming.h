// How messages to people name the ranks and tensors of a process set.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/in_quotes.h"
#include "core/strings.h"

namespace rueda {

class SetNaming {
 public:
  // `members`: the world ranks of the set; `set_name`: "" for the world, "process set 2".
  SetNaming(std::vector<int> members, std::string set_name)
      : members_(std::move(members)), set_name_(std::move(set_name)) {}

  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] int world_rank(int set_rank) const {
    return members_[static_cast<std::size_t>(set_rank)];
  }
  // "ranks 1 and 5" of the world.
  [[nodiscard]] std::string describe(const std::vector<int>& set_ranks) const {
    std::vector<int> world_ranks;
    for (const int rank : set_ranks) world_ranks.push_back(world_rank(rank));
    return describe_ranks(world_ranks);
  }
  [[nodiscard]] std::string quoted(const std::string& tensor) const {
    return set_name_.empty() ? in_quotes(tensor) : str(in_quotes(tensor), " (", set_name_, ")");
  }
  // What a rank that leaves the set does.
  [[nodiscard]] std::string departure() const {
    return set_name_.empty() ? "has shut down" : str("has left ", set_name_);
  }

 private:
  std::vector<int> members_;
  std::string set_name_;
};

}  // namespace rueda
