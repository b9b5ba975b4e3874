// Which ranks of a process set that has been removed have nothing more to ask for: all will, and
// the set ends with the last of them. Each says so behind what it has announced, so that what all
// had submitted before the removal is done on all.
//
// What a rank has submitted may have to wait for an operation of the same number to be over. It
// then says how many lists of responses it had taken: where all have spoken, it has heard of all
// there is and still waits, nobody will submit what it waits for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace rueda {

// How a rank leaves a set: which ends for all with its word, or, once it has been removed, with the
// last of them. `later_with_all`: what this rank has yet to submit waits for what is pending; said
// again after each list of responses.
enum class Leaving : std::uint8_t { alone, with_all, later_with_all };

struct RetiringRank {
  static constexpr std::uint64_t always = std::numeric_limits<std::uint64_t>::max();

  int rank = 0;
  std::uint64_t lists = always;  // of responses, beyond which it may ask for more
};

class RetiringRanks {
 public:
  // This rank, or one below it in the tree. Returns whether that is news, which is to travel up.
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
  // Whether none of them asks for more, after so many lists.
  [[nodiscard]] bool are_done(std::uint64_t lists) const {
    return std::all_of(lists_.begin(), lists_.end(),
                       [lists](const auto& word) { return word.second >= lists; });
  }

 private:
  std::map<int, std::uint64_t> lists_;  // by rank
  std::vector<RetiringRank> news_;
};

}  // namespace rueda
