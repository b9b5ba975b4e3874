#include "settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>

#include "core/strings.h"
#include "plan/algorithm_table.h"
#include "workload.h"

namespace rueda::simulate {

namespace {

// Each rank has a list of all of them.
constexpr int max_ranks = 20'000;
// Bytes of all tensors, so that no time overflows.
constexpr std::int64_t max_bytes = std::int64_t{1} << 40;

// --- Values: nothing, or what was meant

std::optional<double> number_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  if (!is_whole || !std::isfinite(value)) return std::nullopt;
  return value;
}

template <class Integer>
std::optional<Integer> integer_in(std::string_view text) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "1024", "64K", "64M", "1G".
std::optional<std::int64_t> bytes_in(std::string_view text) {
  int shift = 0;
  const std::size_t unit = std::string_view("KMG").find(text.empty() ? ' ' : text.back());
  if (unit != std::string_view::npos) {
    shift = 10 * (static_cast<int>(unit) + 1);
    text.remove_suffix(1);
  }
  const auto value = integer_in<std::int64_t>(text);
  if (!value || *value < 0 || *value > max_bytes >> shift) return std::nullopt;
  return *value << shift;
}

std::optional<std::vector<Tensor>> tensors_in(std::string_view text) {
  if (text == "resnet50") return resnet50();
  std::vector<Tensor> tensors;
  std::int64_t all = 0;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const std::size_t times = item.find('x');
    const auto count =
        times == std::string_view::npos ? std::optional(1) : integer_in<int>(item.substr(0, times));
    const auto bytes = bytes_in(times == std::string_view::npos ? item : item.substr(times + 1));
    if (!count || *count < 1 || *count > 1'000'000 || !bytes || *bytes < 4 || *bytes % 4 != 0) {
      return std::nullopt;
    }
    if (*bytes > (max_bytes - all) / *count) return std::nullopt;
    all += *bytes * *count;
    for (int i = 0; i < *count; ++i) {
      tensors.push_back({str("tensor.", tensors.size()), *bytes / 4});
    }
    const bool ends = comma == text.size();
    text.remove_prefix(ends ? comma : comma + 1);
    if (!ends && text.empty()) return std::nullopt;
  }
  if (tensors.empty()) return std::nullopt;
  return tensors;
}

// --- Options

struct Option {
  std::string_view name;
  std::string_view value;  // as --help calls it; empty: it takes none
  std::string_view help;
  std::string_view accepted;  // for the message about what is not
  // Whether the value is accepted.
  std::function<bool(Settings& settings, std::string_view value)> set;
};

auto integer(int Settings::* field, int least, int most) {
  return [=](Settings& settings, std::string_view text) {
    const auto value = integer_in<int>(text);
    if (!value || *value < least || *value > most) return false;
    settings.*field = *value;
    return true;
  };
}

// A number from 0 (or above it) to a million, in units of `unit`.
template <class Set>
auto real(double unit, bool may_be_zero, Set set) {
  return [=](Settings& settings, std::string_view text) {
    const auto value = number_in(text);
    if (!value || *value < 0 || *value > 1e6 || (*value == 0 && !may_be_zero)) return false;
    set(settings, *value * unit);
    return true;
  };
}

auto bytes(std::int64_t Options::* field, std::int64_t least) {
  return [=](Settings& settings, std::string_view text) {
    const auto value = bytes_in(text);
    if (!value || *value < least) return false;
    settings.engine.*field = *value;
    return true;
  };
}

// Gigabytes per second as nanoseconds per byte.
auto rate(double Costs::* field) {
  return real(1, false, [=](Settings& it, double value) { it.costs.*field = 1 / value; });
}

constexpr std::string_view positive = "a number above 0, up to 1000000";
constexpr std::string_view not_negative = "a number from 0 to 1000000";
constexpr std::string_view a_size = "bytes, as 1048576, 1024K or 1M";

const std::vector<Option>& options() {
  static const std::vector<Option> table{
      {"--hosts", "N", "hosts; 4", "a number from 2 to 20000",
       integer(&Settings::hosts, 2, max_ranks)},
      {"--ranks-per-host", "N", "ranks on each; 1", "a number from 1 to 4096",
       integer(&Settings::ranks_per_host, 1, 4096)},
      {"--tensors", "LIST",
       "resnet50 (161 tensors), or sizes in the order in which they are ready: 64M, 4x1M,512K; "
       "float32; resnet50",
       "resnet50, or a list of sizes that are multiples of 4 bytes, 1 TiB together at most",
       [](Settings& it, std::string_view text) {
         auto tensors = tensors_in(text);
         if (!tensors) return false;
         it.tensors = std::move(*tensors);
         return true;
       }},
      {"--steps", "N", "steps; the first is negotiated in full; 2", "a number from 1 to 1000",
       integer(&Settings::steps, 1, 1000)},
      {"--forward", "MS", "of a step before the backward pass; 0", not_negative,
       real(1e-3, true, [](Settings& it, double value) { it.forward = value; })},
      {"--backward", "MS", "in which tensors become ready, in proportion to their bytes; 0",
       not_negative, real(1e-3, true, [](Settings& it, double value) { it.backward = value; })},
      {"--jitter", "MS", "each rank begins each step up to so much late; 0", not_negative,
       real(1e-3, true, [](Settings& it, double value) { it.jitter = value; })},
      {"--seed", "N", "of the jitter; 1", "a number from 0 to 18446744073709551615",
       [](Settings& it, std::string_view text) {
         const auto value = integer_in<std::uint64_t>(text);
         it.seed = value.value_or(0);
         return value.has_value();
       }},
      {"--latency", "US", "of a message of a byte between hosts; 30", not_negative,
       real(1e3, true, [](Settings& it, double value) { it.costs.link.latency = value; })},
      {"--bandwidth", "GBIT", "what a host's link carries in a second, of tensors; 10", positive,
       real(1, false, [](Settings& it, double value) { it.costs.link.per_byte = 8 / value; })},
      {"--reduce", "GB/S", "at which a rank adds what has arrived; 10", positive,
       rate(&Costs::reduce)},
      {"--copy", "GB/S", "into and out of fusion buffers; 10", positive, rate(&Costs::copy)},
      {"--memory", "GB/S", "at which the ranks of a host together reduce a tensor, or gather it; 5",
       positive, rate(&Costs::memory)},
      {"--memory-latency", "US", "the same of nothing; 5", not_negative,
       real(1e3, true, [](Settings& it, double value) { it.costs.memory_latency = value; })},
      {"--message-cost", "US", "processor time of sending or receiving a control message; 3",
       not_negative,
       real(1e3, true, [](Settings& it, double value) { it.costs.control_message = value; })},
      {"--algorithm", "TABLE",
       "as RUEDA_ALGORITHM: ring, hierarchical, doubling:0-64K, ...; by the model of the links",
       "what RUEDA_ALGORITHM takes",
       [](Settings& it, std::string_view text) {
         it.engine.algorithm = text;
         return AlgorithmTable::parse(text, {}, Extent::several_hosts).status().ok();
       }},
      {"--fusion-threshold", "BYTES", "as RUEDA_FUSION_THRESHOLD; 64M", a_size,
       bytes(&Options::fusion_threshold, 0)},
      {"--chunk", "BYTES", "as RUEDA_RING_CHUNK; 256K", a_size, bytes(&Options::ring_chunk, 4)},
      {"--batches-in-flight", "N", "as RUEDA_BATCHES_IN_FLIGHT; 2", "a number from 1 to 1000",
       [](Settings& it, std::string_view text) {
         const auto value = integer_in<std::int64_t>(text);
         it.engine.batches_in_flight = value.value_or(0);
         return value && *value >= 1 && *value <= 1000;
       }},
      {"--cache", "N", "entries of the response cache, as RUEDA_CACHE_CAPACITY; 1024",
       "a number from 0 to 1000000",
       [](Settings& it, std::string_view text) {
         const auto value = integer_in<std::int64_t>(text);
         it.engine.cache_capacity = value.value_or(0);
         return value && *value >= 0 && *value <= 1'000'000;
       }},
      {"--fanout", "N", "of the trees in which ranks and hosts agree; 4", "a number from 1 to 1000",
       integer(&Settings::fanout, 1, 1000)},
      {"--no-replay", "", "negotiate every step", "",
       [](Settings& it, std::string_view) {
         it.replay = false;
         return true;
       }},
      {"--json", "", "write JSON", "",
       [](Settings& it, std::string_view) {
         it.json = true;
         return true;
       }},
  };
  return table;
}

Status wrong(const std::string& text) {
  return {ErrorCode::invalid_argument, text};
}

}  // namespace

std::string usage() {
  std::string text =
      "usage: simulate [OPTION]...\n\n"
      "How long steps of data-parallel training take on 2 to 20,000 ranks, and what each of them\n"
      "sends. The plans and the negotiation are the engine's own; messages take simulated time.\n"
      "The same arguments give the same output. What is not modelled: docs/scaling.md.\n\n";
  for (const Option& option : options()) {
    std::string head = str("  ", option.name, option.value.empty() ? "" : " ", option.value);
    head.resize(std::max<std::size_t>(head.size() + 1, 28), ' ');
    text += str(head, option.help, "\n");
  }
  return text + "  --help                    this text\n";
}

Expected<Settings> parse(const std::vector<std::string>& arguments) {
  Settings settings;
  settings.tensors = resnet50();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    // --name VALUE or --name=VALUE
    const std::size_t equals = arguments[i].find('=');
    const std::string name = arguments[i].substr(0, equals);
    const auto option = std::find_if(options().begin(), options().end(),
                                     [&](const Option& it) { return it.name == name; });
    if (option == options().end()) {
      return wrong(str("unknown argument '", arguments[i], "': see --help"));
    }
    std::string value;
    if (equals != std::string::npos) {
      if (option->value.empty()) return wrong(str(name, " takes no value"));
      value = arguments[i].substr(equals + 1);
    } else if (!option->value.empty()) {
      if (i + 1 == arguments.size()) return wrong(str(name, " needs ", option->accepted));
      value = arguments[++i];
    }
    if (!option->set(settings, value)) {
      return wrong(str(name, " must be ", option->accepted, ", not '", value, "'"));
    }
  }
  if (std::int64_t{settings.hosts} * settings.ranks_per_host > max_ranks) {
    return wrong(str(settings.hosts, " hosts with ", settings.ranks_per_host,
                     " ranks each are more than ", max_ranks, " ranks"));
  }
  return settings;
}

}  // namespace rueda::simulate
