// Everything that can be configured, in one table: environment variables, launcher flags, parsing,
// the agreement between ranks and docs/options.md all come from it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "core/status.h"

namespace rueda {

struct Options {
  std::string transport = "auto";
  std::string algorithm = "auto";
  std::int64_t fusion_threshold = 64 << 20;
  std::int64_t ring_chunk = 256 << 10;
  std::int64_t batches_in_flight = 2;
  std::int64_t cache_capacity = 1024;
  std::string huge_pages = "auto";
  double stall_warning = 60;
  double stall_error = 600;
  double transfer_timeout = 600;
  double init_timeout = 120;
  double shutdown_timeout = 30;
  std::string recovery = "off";
  double heartbeat = 1;
  std::int64_t min_np = 1;
  std::string timeline;
  std::string timeline_format = "auto";  // like rueda; read_options() may make it horovod
  std::string timeline_cycles = "0";
  std::string flight_recorder;
  std::int64_t flight_recorder_size = 2000;
  std::string join_average = "present";
  std::string log_level = "warning";
  std::string mpi_library;
  std::string cuda_library;
  std::string nccl_library;
  std::string gpu_backend = "auto";
  std::string gpu_sharing = "off";
  std::string interface;
  std::string bootstrap = "auto";
};

// How the text of a value is read and printed. `bytes` takes a suffix K, M or G (powers of 1024).
enum class OptionType : std::uint8_t { text, choice, bytes, count, seconds };

struct OptionSpec {
  std::string_view name;         // as in Options; the launcher's flag is --name with dashes
  std::string_view environment;  // RUEDA_...
  std::string_view horovod;      // HOROVOD_... with the same meaning, or empty
  OptionType type;
  std::string_view choices;      // separated by '|', for OptionType::choice
  bool must_agree;               // visible to other ranks: init fails if ranks differ
  std::string_view description;  // one or two sentences, for --help and the documentation
  std::variant<std::string Options::*, std::int64_t Options::*, double Options::*> field;
};

[[nodiscard]] std::span<const OptionSpec> option_table();

// Looks up a variable; empty if it is unset.
using Environment = std::function<std::optional<std::string>(std::string_view)>;
[[nodiscard]] Environment process_environment();

// Defaults, overridden by the environment (RUEDA_* before HOROVOD_*), overridden by `overrides` (by
// option name). Fails with the variable or option at fault, its value and what is accepted.
[[nodiscard]] Expected<Options> read_options(const Environment& environment,
                                             const std::map<std::string, std::string>& overrides);

// The path if it is absolute or empty, and otherwise that path within `folder`, so that it does not
// follow the application's chdir().
[[nodiscard]] std::string anchored(const std::string& path, const std::string& folder);
// Does this to the paths of what Rueda writes.
void anchor_paths(Options& options, const std::string& folder);

// The value as text that read_options() accepts.
[[nodiscard]] std::string option_text(const OptionSpec& spec, const Options& options);

}  // namespace rueda
