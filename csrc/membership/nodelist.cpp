#include "membership/nodelist.h"

#include <charconv>
#include <cstdint>
#include <utility>

#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::size_t max_digits = 18;  // of a number that surely fits 64 bits

class NodeListParser {
 public:
  explicit NodeListParser(std::string_view text) : text_(text) {}

  Status parse() {
    do {
      if (Status status = parse_name(); !status.ok()) return status;
    } while (skip(','));
    return at_end() ? Status() : wrong("',' is missing");
  }

  std::vector<std::string> take_names() { return std::move(names_); }

 private:
  [[nodiscard]] bool at_end() const { return position_ == text_.size(); }
  [[nodiscard]] bool is_at(char wanted) const { return !at_end() && text_[position_] == wanted; }

  bool skip(char wanted) {
    if (!is_at(wanted)) return false;
    ++position_;
    return true;
  }

  [[nodiscard]] Status wrong(std::string_view what) const {
    return Status(
        ErrorCode::invalid_argument,
        str("the node list '", text_, "' is malformed at position ", position_ + 1, ": ", what));
  }

  // Everything that one entry names: alternating texts and brackets, each a factor of the product.
  Status parse_name() {
    std::vector<std::string> prefixes{""};
    const std::size_t begin = position_;
    while (!at_end() && !is_at(',')) {
      if (skip('[')) {
        std::vector<std::string> numbers;
        if (Status status = parse_bracket(numbers); !status.ok()) return status;
        if (Status status = multiply(prefixes, numbers); !status.ok()) return status;
      } else {
        if (is_at(']')) return wrong("']' without '['");
        for (std::string& prefix : prefixes) prefix += text_[position_];
        ++position_;
      }
    }
    if (position_ == begin) return wrong("a name is missing");
    if (names_.size() + prefixes.size() > max_listed_nodes) return too_many();
    for (std::string& name : prefixes) names_.push_back(std::move(name));
    return {};
  }

  Status multiply(std::vector<std::string>& prefixes, const std::vector<std::string>& numbers) {
    if (prefixes.size() * numbers.size() > max_listed_nodes) return too_many();
    std::vector<std::string> product;
    product.reserve(prefixes.size() * numbers.size());
    for (const std::string& prefix : prefixes) {
      for (const std::string& number : numbers) product.push_back(prefix + number);
    }
    prefixes = std::move(product);
    return {};
  }

  // After '[', up to and including ']'.
  Status parse_bracket(std::vector<std::string>& numbers) {
    do {
      if (Status status = parse_range(numbers); !status.ok()) return status;
    } while (skip(','));
    return skip(']') ? Status() : wrong("']' is missing");
  }

  Status parse_range(std::vector<std::string>& numbers) {
    const std::string_view low = digits();
    if (low.empty()) return wrong("a number is missing");
    const std::string_view high = skip('-') ? digits() : low;
    if (high.empty()) return wrong("a number is missing");
    if (low.size() > max_digits || high.size() > max_digits) return wrong("the number is too long");
    const std::uint64_t first = value_of(low);
    const std::uint64_t last = value_of(high);
    if (last < first) return wrong("the range ends before it begins");
    if (last - first >= max_listed_nodes - numbers.size()) return too_many();
    for (std::uint64_t number = first; number <= last; ++number) {
      const std::string plain = std::to_string(number);
      const std::size_t zeros = low.size() > plain.size() ? low.size() - plain.size() : 0;
      numbers.push_back(std::string(zeros, '0') + plain);
    }
    return {};
  }

  [[nodiscard]] Status too_many() const {
    return wrong(str("it names more than ", max_listed_nodes, " nodes"));
  }

  std::string_view digits() {
    const std::size_t begin = position_;
    while (!at_end() && text_[position_] >= '0' && text_[position_] <= '9') ++position_;
    return text_.substr(begin, position_ - begin);
  }

  static std::uint64_t value_of(std::string_view digits) {
    std::uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }

  const std::string_view text_;
  std::size_t position_ = 0;
  std::vector<std::string> names_;
};

}  // namespace

Expected<std::vector<std::string>> expand_node_list(std::string_view list) {
  NodeListParser parser(list);
  if (Status status = parser.parse(); !status.ok()) return status;
  return parser.take_names();
}

}  // namespace rueda
