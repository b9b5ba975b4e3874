// Text for messages: concatenation, and ranks as people write them.
#pragma once

#include <array>
#include <charconv>
#include <concepts>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace rueda {

// Integers, except types that are written as characters.
template <class Part>
concept WrittenInDigits =
    std::integral<Part> && !std::same_as<Part, bool> && sizeof(Part) > 1 &&
    !std::same_as<Part, wchar_t> && !std::same_as<Part, char16_t> && !std::same_as<Part, char32_t>;

// Appends what a stream would write to `text`. Names are built this way for each operation of a
// group, so the frequent types avoid a stream, which costs more than all the rest.
template <class Part>
void append_as_text(std::string& text, const Part& part) {
  if constexpr (std::convertible_to<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::same_as<Part, char>) {
    text += part;
  } else if constexpr (WrittenInDigits<Part>) {
    std::array<char, std::numeric_limits<Part>::digits10 + 2> digits;  // and a sign
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), part).ptr;
    text.append(digits.data(), end);
  } else {
    std::ostringstream out;
    out.imbue(std::locale::classic());  // "1000" in any locale of the application
    out << part;
    text += std::move(out).str();
  }
}

// str("rank ", 3, " of ", 4) == "rank 3 of 4"
template <class... Parts>
[[nodiscard]] std::string str(const Parts&... parts) {
  std::string text;
  (append_as_text(text, parts), ...);
  return text;
}

// "rank 3", "ranks 0, 2 and 5", "ranks 0-6 and 9", "no rank". `ranks` must be sorted.
[[nodiscard]] std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace rueda
