// Which members of an epoch that broke stay, given what all of them know: the same for all that
// know the same (see SurvivorAgreement).
#pragma once

#include <compare>
#include <cstddef>
#include <set>
#include <vector>

namespace rueda {

// `observer` cannot reach `member`, or no longer hears it.
struct BrokenLink {
  int observer = 0;
  int member = 0;
  [[nodiscard]] auto operator<=>(const BrokenLink&) const = default;
};

// A set of `members` (sorted) in which all reach each other, and which no further member can join.
// Members with the most broken links are removed first: one that nobody hears, one that hears
// nobody, the smaller side of a partition. Among equals, one that does not report the links as
// broken itself, since it may be frozen; then the one with the highest number.
[[nodiscard]] std::vector<int> choose_survivors(const std::vector<int>& members,
                                                const std::set<BrokenLink>& broken);

// Whether `survivors` are more than half of those of `members` that have not ended, or half
// including the lowest-numbered. True if all have ended. All sorted.
[[nodiscard]] bool has_quorum(const std::vector<int>& survivors, const std::vector<int>& members,
                              const std::vector<int>& ended);

}  // namespace rueda
