#include "plan/algorithm_table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::array<std::string_view, 10> names{"flat",         "staged",   "direct",  "ring",
                                                 "hierarchical", "doubling", "halving", "tree",
                                                 "gathered",     "pairwise"};
constexpr std::int64_t no_end = std::numeric_limits<std::int64_t>::max();

std::optional<Algorithm> algorithm_named(std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Algorithm>(found - names.begin());
}

bool serves(Algorithm algorithm, Extent extent) {
  switch (algorithm) {
    case Algorithm::flat:
    case Algorithm::staged:
    case Algorithm::direct: return extent == Extent::one_host;
    case Algorithm::hierarchical:
    case Algorithm::doubling:
    case Algorithm::halving:
    case Algorithm::tree: return extent == Extent::several_hosts;
    case Algorithm::gathered:
    case Algorithm::pairwise: return extent == Extent::alltoall_across;
    case Algorithm::ring: break;
  }
  return extent != Extent::alltoall_across;
}

// "8K", "1M", "4096".
std::optional<std::int64_t> size_of_text(std::string_view text) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number < 0) return std::nullopt;
  const std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  if (suffix.empty()) return number;
  const auto power = std::string_view("KMGkmg").find(suffix);
  if (suffix.size() != 1 || power == std::string_view::npos) return std::nullopt;
  const int shift = 10 * (static_cast<int>(power % 3) + 1);
  if (number > (no_end >> shift)) return std::nullopt;
  return number << shift;
}

std::string size_text(std::int64_t bytes) {
  for (int shift = 30; shift > 0; shift -= 10) {
    const std::int64_t unit = std::int64_t{1} << shift;
    if (bytes >= unit && bytes % unit == 0) return str(bytes >> shift, "KMG"[shift / 10 - 1]);
  }
  return str(bytes);
}

struct Range {
  std::int64_t first = 0;
  std::int64_t last = no_end;
};

// "0-8K", "8K-"; all sizes if empty.
std::optional<Range> range_of(std::string_view text) {
  if (text.empty()) return Range{};
  const auto dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto first = size_of_text(text.substr(0, dash));
  const std::string_view rest = text.substr(dash + 1);
  const auto last = rest.empty() ? no_end : size_of_text(rest);
  if (!first || !last || *first >= *last) return std::nullopt;
  return Range{*first, *last};
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  return names.at(static_cast<std::size_t>(algorithm));
}

AlgorithmTable AlgorithmTable::of_limit(std::int64_t limit, Algorithm small, Algorithm large) {
  AlgorithmTable table;
  table.rows_ = {{0, large}};
  if (limit > 0) table.rows_ = {{0, small}, {limit, large}};
  return table;
}

AlgorithmTable AlgorithmTable::of_rows(std::vector<Row> rows) {
  AlgorithmTable table;
  table.rows_ = std::move(rows);
  table.merge_rows();
  return table;
}

Expected<AlgorithmTable> AlgorithmTable::parse(std::string_view text,
                                               const AlgorithmTable& otherwise, Extent extent) {
  AlgorithmTable table = otherwise;
  if (text == "auto") return table;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const auto colon = part.find(':');
    const auto algorithm = algorithm_named(part.substr(0, colon));
    const auto range =
        range_of(colon == std::string_view::npos ? std::string_view() : part.substr(colon + 1));
    if (!algorithm || !range) {
      return Status(ErrorCode::initialization,
                    str("'", part,
                        "' is not an algorithm with a range of sizes: give auto, or flat, "
                        "staged, direct, ring, hierarchical, doubling, halving, tree, gathered or "
                        "pairwise, each optionally with a range, as in flat:0-8K;ring:8K-"));
    }
    if (serves(*algorithm, extent)) table.set(range->first, range->last, *algorithm);
  }
  return table;
}

bool AlgorithmTable::is_partial(std::string_view text, Extent extent) {
  const auto one = parse(text, of_rows({{0, Algorithm::flat}}), extent);
  const auto another = parse(text, of_rows({{0, Algorithm::ring}}), extent);
  return !one || !another || one->to_string() != another->to_string();
}

bool AlgorithmTable::needs_hosts(std::string_view text) {
  constexpr std::array without{std::pair(Extent::one_host, Algorithm::ring),
                               std::pair(Extent::several_hosts, Algorithm::ring),
                               std::pair(Extent::alltoall_across, Algorithm::pairwise)};
  return std::ranges::any_of(without, [text](const auto& each) {
    const auto [extent, algorithm] = each;
    const auto table = parse(text, of_rows({{0, algorithm}}), extent);
    return table && (table->rows().size() > 1 || table->choose(0) != algorithm);
  });
}

void AlgorithmTable::set(std::int64_t first, std::int64_t last, Algorithm algorithm) {
  const Algorithm after = choose(last);
  std::erase_if(rows_, [&](const Row& row) { return row.from >= first && row.from <= last; });
  rows_.push_back({first, algorithm});
  if (last != no_end) rows_.push_back({last, after});
  std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.from < b.from; });
  merge_rows();
}

void AlgorithmTable::merge_rows() {
  const auto same = [](const Row& a, const Row& b) { return a.algorithm == b.algorithm; };
  rows_.erase(std::unique(rows_.begin(), rows_.end(), same), rows_.end());
}

Algorithm AlgorithmTable::choose(std::int64_t bytes) const {
  const auto next = std::find_if(rows_.begin() + 1, rows_.end(),
                                 [bytes](const Row& row) { return row.from > bytes; });
  return std::prev(next)->algorithm;
}

std::string AlgorithmTable::to_string() const {
  std::string text;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    text += str(i == 0 ? "" : ";", name_of(rows_[i].algorithm), ":", size_text(rows_[i].from), "-",
                i + 1 < rows_.size() ? size_text(rows_[i + 1].from) : "");
  }
  return text;
}

}  // namespace rueda
