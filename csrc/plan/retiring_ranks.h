// Which ranks of a removed process set have nothing more to ask for. In the end that is all of
// them, and the set ends with the last one. Each rank says so after its announcements, so that
// everything that all had submitted before the removal is done on all.
//
// What a rank has submitted may have to wait until an operation with the same number ends. The rank
// then says how many lists of responses it has taken. Once all have spoken, and such a rank has
// seen all lists and still waits, nobody will submit what it waits for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace rueda {

// How a rank leaves a set. The set ends for all when one rank leaves alone or, if the set has been
// removed, with the last rank. `later_with_all`: this rank still has to submit what waits for
// pending operations; it says so again after each list of responses.
enum class Leaving : std::uint8_t { alone, with_all, later_with_all };

struct RetiringRank {
  static constexpr std::uint64_t always = std::numeric_limits<std::uint64_t>::max();

  int rank = 0;
  std::uint64_t lists = always;  // of responses; after more than these it may ask for more
};

class RetiringRanks {
 public:
  // A word from this rank, or from one below it in the tree. Returns whether it is new and must
  // travel up.
  bool note(const RetiringRank& word) {
    const auto [known, is_new] = lists_.emplace(word.rank, word.lists);
    if (!is_new && std::exchange(known->second, word.lists) == word.lists) return false;
    news_.push_back(word);
    return true;
  }
  [[nodiscard]] std::vector<RetiringRank> take_news() { return std::exchange(news_, {}); }

  [[nodiscard]] bool are_all_of(int size) const {
    return lists_.size() == static_cast<std::size_t>(size);
  }
  // Whether none of them asks for more after this many lists.
  [[nodiscard]] bool are_done(std::uint64_t lists) const {
    return std::all_of(lists_.begin(), lists_.end(),
                       [lists](const auto& word) { return word.second >= lists; });
  }

 private:
  std::map<int, std::uint64_t> lists_;  // by rank
  std::vector<RetiringRank> news_;
};

}  // namespace rueda
