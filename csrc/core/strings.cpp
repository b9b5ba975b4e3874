#include "core/strings.h"

#include <cstddef>

namespace rueda {

std::string describe_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::vector<std::string> pieces;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (last - i >= 2) {
      pieces.push_back(str(ranks[i], "-", ranks[last]));
      i = last + 1;
    } else {
      pieces.push_back(std::to_string(ranks[i]));
      ++i;
    }
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) text += i + 1 == pieces.size() ? " and " : ", ";
    text += pieces[i];
  }
  return text;
}

}  // namespace rueda
