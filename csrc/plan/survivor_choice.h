// Which members of an epoch that broke stay, by what all of them know: the same for all that know
// the same (see SurvivorAgreement).
#pragma once

#include <compare>
#include <cstddef>
#include <set>
#include <vector>

namespace rueda {

// `observer` does not reach `member`, or no longer hears it.
struct BrokenLink {
  int observer = 0;
  int member = 0;
  [[nodiscard]] auto operator<=>(const BrokenLink&) const = default;
};

// A set of `members` (sorted) in which all reach each other, and which no further member can join.
// Who has most broken links goes first: one that nobody hears, one that hears nobody, the smaller
// side of a partition. Of those with as many, one that does not itself say that the links are
// broken, since it may be frozen; then the one with the highest number.
[[nodiscard]] std::vector<int> choose_survivors(const std::vector<int>& members,
                                                const std::set<BrokenLink>& broken);

// Whether `survivors` are more than half of those of `members` that have not ended, or half with
// the lowest-numbered of them. True where all have ended. All sorted.
[[nodiscard]] bool has_quorum(const std::vector<int>& survivors, const std::vector<int>& members,
                              const std::vector<int>& ended);

}  // namespace rueda
