#include "core/unknown_variables.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>

#include "core/options.h"
#include "core/strings.h"

namespace rueda {

namespace {

constexpr std::array<std::string_view, 19> others{"RUEDA_RANK",        "RUEDA_SIZE",
                                                  "RUEDA_LOCAL_RANK",  "RUEDA_LOCAL_SIZE",
                                                  "RUEDA_CROSS_RANK",  "RUEDA_CROSS_SIZE",
                                                  "RUEDA_RENDEZVOUS",  "RUEDA_SECRET",
                                                  "RUEDA_LAUNCHER",    "RUEDA_INSTRUCTION_SET",
                                                  "RUEDA_SSH_COMMAND", "RUEDA_RENDEZVOUS_LISTENER",
                                                  "RUEDA_ELASTIC",     "RUEDA_JOINER",
                                                  "RUEDA_SECRET_FILE", "RUEDA_EQUIV",
                                                  "RUEDA_REPORT",      "RUEDA_RENDEZVOUS_STORE",
                                                  "RUEDA_OUTER_STEP"};

// How many characters must be inserted, deleted or replaced to turn one into the other.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t exchanged = diagonal + (from[i] != to[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string_view> known_variables() {
  std::vector<std::string_view> known(others.begin(), others.end());
  for (const OptionSpec& spec : option_table()) known.push_back(spec.environment);
  return known;
}

}  // namespace

std::span<const std::string_view> other_variables() {
  return others;
}

std::vector<std::string> unknown_variables(std::span<const std::string> names) {
  const auto known = known_variables();
  std::vector<std::string> sentences;
  for (const std::string& name : names) {
    if (!name.starts_with("RUEDA_") || name.starts_with("RUEDA_TEST_") ||
        name.starts_with("RUEDA_BENCH_") || std::ranges::find(known, name) != known.end()) {
      continue;
    }
    const auto nearest = std::ranges::min_element(
        known, {}, [&name](std::string_view candidate) { return edit_distance(name, candidate); });
    // Beyond the prefix, a third of the letters may be wrong.
    const bool is_near = edit_distance(name, *nearest) * 3 <= name.size() - 6;
    sentences.push_back(str("the variable ", name, " is unknown and has no effect",
                            is_near ? str("; did you mean ", *nearest, "?") : std::string()));
  }
  return sentences;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view setting(*entry);
    names.emplace_back(setting.substr(0, setting.find('=')));
  }
  return names;
}

}  // namespace rueda
