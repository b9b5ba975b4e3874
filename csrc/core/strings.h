// Text for messages: concatenation, and ranks as people write them.
#pragma once

#include <locale>
#include <sstream>
#include <string>
#include <vector>

namespace rueda {

// str("rank ", 3, " of ", 4) == "rank 3 of 4"
template <class... Parts>
[[nodiscard]] std::string str(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // "1000", whatever the application's locale
  (out << ... << parts);
  return std::move(out).str();
}

// "rank 3", "ranks 0, 2 and 5", "ranks 0-6 and 9", "no rank". `ranks` must be sorted.
[[nodiscard]] std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace rueda
