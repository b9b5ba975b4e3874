#include "core/options.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/strings.h"

namespace rueda {

namespace {

using enum OptionType;

constexpr std::array table{
    OptionSpec{
        "transport", "RUEDA_TRANSPORT", "", choice, "auto|shm|mpi|tcp", true,
        "What moves the data between ranks. auto uses shared memory between ranks on one host. "
        "Between hosts it uses MPI if the ranks met through MPI, else TCP. shm is for worlds on "
        "one host. mpi uses MPI only. tcp uses shared memory within each host if there are several "
        "hosts; on one host it uses TCP only.",
        &Options::transport},
    OptionSpec{"bootstrap", "RUEDA_BOOTSTRAP", "", choice, "auto|mpi|rendezvous|none", false,
               "How ranks find each other. auto recognises the launcher by its variables. none "
               "makes a world of one rank, whatever the launcher says.",
               &Options::bootstrap},
    OptionSpec{
        "algorithm", "RUEDA_ALGORITHM", "", text, "", true,
        "Which algorithm exchanges data of which size, as in flat:0-8K;direct:8K-1M;ring:1M-. For "
        "ranks on one host: flat copies through shared memory, up to 512K; staged does the same in "
        "parts, of which each rank combines its own; direct reaches into the other ranks' tensors. "
        "For ranks on several hosts: hierarchical, doubling, halving and tree use memory within "
        "each host, and rings, recursive doubling, recursive halving or two binary trees between "
        "hosts. ring works for both. "
        "gathered and pairwise are for all-to-all across several hosts; the size is what a rank "
        "has for one of another host on average. gathered sends one message for each host and rank "
        "there, pairwise one for each pair of ranks. auto chooses by measurements at init, where "
        "ranks of one host measure nothing if all sizes have an algorithm here.",
        &Options::algorithm},
    OptionSpec{"fusion_threshold", "RUEDA_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD", bytes, "",
               true,
               "Tensors are batched into fusion buffers of up to this size. 0 reduces each tensor "
               "separately.",
               &Options::fusion_threshold},
    OptionSpec{
        "ring_chunk", "RUEDA_RING_CHUNK", "", bytes, "", true,
        "The largest piece that travels around the ring at once. Smaller pieces overlap transfer "
        "and reduction better; larger pieces need fewer messages. Between hosts Rueda uses smaller "
        "pieces if a trial at init finds them as fast.",
        &Options::ring_chunk},
    OptionSpec{"batches_in_flight", "RUEDA_BATCHES_IN_FLIGHT", "", count, "", false,
               "How many batches of a process set may be in flight before further tensors are held "
               "back for fusion.",
               &Options::batches_in_flight},
    OptionSpec{"cache_capacity", "RUEDA_CACHE_CAPACITY", "HOROVOD_CACHE_CAPACITY", count, "", true,
               "How many tensors a process set remembers, so that a repeated request is sent as a "
               "number. 0 turns the cache off.",
               &Options::cache_capacity},
    OptionSpec{
        "huge_pages", "RUEDA_HUGE_PAGES", "", choice, "auto|off", false,
        "Whether tensors are moved to huge pages in place. auto does so for tensors of persistent "
        "operations that have 64 KiB or more and are in the process's own memory, and for tensors "
        "of 1 MiB or more that torch.distributed's backend repeatedly reduces asynchronously at "
        "one address.",
        &Options::huge_pages},
    OptionSpec{
        "join_average", "RUEDA_JOIN_AVERAGE", "", choice, "present|all", true,
        "What an average divides by once ranks have joined: the ranks that take part, or all ranks "
        "of the process set, as in Horovod.",
        &Options::join_average},
    OptionSpec{"stall_warning", "RUEDA_STALL_WARNING", "HOROVOD_STALL_CHECK_TIME_SECONDS", seconds,
               "", true,
               "When a tensor has waited this long for some ranks, every rank is told which. A "
               "message that has waited this long for its other side is reported by the rank that "
               "waits. 0 never warns.",
               &Options::stall_warning},
    OptionSpec{"stall_error", "RUEDA_STALL_ERROR", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", seconds,
               "", true,
               "When a tensor has waited this long for some ranks, it fails with StalledError on "
               "every rank. 0 waits forever.",
               &Options::stall_error},
    OptionSpec{"transfer_timeout", "RUEDA_TRANSFER_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS",
               seconds, "", false,
               "A batch whose transfers make no progress for this long fails with TimeoutError, "
               "which names the ranks waited for. 0 waits forever.",
               &Options::transfer_timeout},
    OptionSpec{
        "init_timeout", "RUEDA_INIT_TIMEOUT", "", seconds, "", false,
        "How long init() waits for the other ranks. This excludes MPI_Init, which waits for all "
        "ranks that mpirun has started and has no timeout.",
        &Options::init_timeout},
    OptionSpec{"shutdown_timeout", "RUEDA_SHUTDOWN_TIMEOUT", "", seconds, "", false,
               "How long shutdown() waits for operations in flight.", &Options::shutdown_timeout},
    OptionSpec{"recovery", "RUEDA_RECOVERY", "", choice, "off|on", true,
               "Whether the remaining ranks form a new world when a rank is lost. recover() enters "
               "it.",
               &Options::recovery},
    OptionSpec{"heartbeat", "RUEDA_HEARTBEAT", "", seconds, "", true,
               "With recovery: a rank that others wait for and that has been silent for this long "
               "counts as lost, as if it had ended.",
               &Options::heartbeat},
    OptionSpec{"min_np", "RUEDA_MIN_NP", "", count, "", true,
               "With recovery: no world of fewer ranks is formed; the remaining ranks stop.",
               &Options::min_np},
    OptionSpec{"timeline", "RUEDA_TIMELINE", "HOROVOD_TIMELINE", text, "", false,
               "Write a Chrome trace of every tensor to this file. %r stands for the rank; without "
               "it only rank 0 writes.",
               &Options::timeline},
    OptionSpec{
        "timeline_format", "RUEDA_TIMELINE_FORMAT", "", choice, "auto|rueda|horovod", false,
        "The names and the layout of the timeline's events. auto means horovod if HOROVOD_TIMELINE "
        "names the file, so that tools for Horovod's timelines can read it, and rueda otherwise.",
        &Options::timeline_format},
    OptionSpec{"timeline_cycles", "RUEDA_TIMELINE_CYCLES", "HOROVOD_TIMELINE_MARK_CYCLES", choice,
               "0|1", false,
               "Mark in a timeline of Horovod's format where tensors that were agreed on together "
               "begin.",
               &Options::timeline_cycles},
    OptionSpec{"flight_recorder", "RUEDA_FLIGHT_RECORDER", "", text, "", false,
               "A folder. When the world fails or stalls, each rank writes its last operations "
               "there, and `rueda analyze` finds where the ranks began to differ.",
               &Options::flight_recorder},
    OptionSpec{"flight_recorder_size", "RUEDA_FLIGHT_RECORDER_SIZE", "", count, "", false,
               "How many finished operations the flight recorder remembers, in addition to all "
               "open ones.",
               &Options::flight_recorder_size},
    OptionSpec{"log_level", "RUEDA_LOG_LEVEL", "HOROVOD_LOG_LEVEL", choice,
               "trace|debug|info|warning|error|off", false, "What is written to standard error.",
               &Options::log_level},
    OptionSpec{"mpi_library", "RUEDA_MPI_LIBRARY", "", text, "", false,
               "Path of libmpi.so. Without it Rueda searches the environment's lib folder, then "
               "the system.",
               &Options::mpi_library},
    OptionSpec{"cuda_library", "RUEDA_CUDA_LIBRARY", "", text, "", false,
               "Path of the CUDA driver, libcuda.so.1. Without it Rueda searches the system.",
               &Options::cuda_library},
    OptionSpec{"nccl_library", "RUEDA_NCCL_LIBRARY", "", text, "", false,
               "Path of libnccl.so.2. Without it Rueda takes the one that the process has loaded, "
               "such as torch's, else searches the environment's wheels and the system.",
               &Options::nccl_library},
    OptionSpec{"gpu_backend", "RUEDA_GPU_BACKEND", "", choice, "auto|nccl|staged", true,
               "How GPU tensors travel. auto uses NCCL if every rank has it and a GPU of its own, "
               "else host memory (staged).",
               &Options::gpu_backend},
    OptionSpec{"gpu_sharing", "RUEDA_GPU_SHARING", "", choice, "off|on", true,
               "Whether ranks that share a GPU use NCCL, which is meant for tests. NCCL 2.30 or "
               "newer allows it if NCCL_MULTI_RANK_GPU_ENABLE=1 is set on all ranks. With off, "
               "such ranks go through host memory.",
               &Options::gpu_sharing},
    OptionSpec{
        "interface", "RUEDA_INTERFACE", "HOROVOD_GLOO_IFACE", text, "", false,
        "Network interface, or address, on which this rank listens for ranks of other hosts. The "
        "default is the address that the host's name resolves to. With several, as in eth0,eth1 in "
        "the same order on every host, TCP data goes over all of them. The first also carries what "
        "the ranks agree on, and must stay up.",
        &Options::interface},
};

// More would be as good as forever, and would overflow the clock.
constexpr double max_seconds = 1e9;

std::string in_lower_case(std::string text) {
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return text;
}

bool is_one_of(std::string_view value, std::string_view choices) {
  while (!choices.empty()) {
    const auto end = choices.find('|');
    if (value == choices.substr(0, end)) return true;
    choices = end == std::string_view::npos ? std::string_view{} : choices.substr(end + 1);
  }
  return false;
}

// 1, 1024, ... for "", "K", "KB", "KiB", "k", ...; empty for anything else.
std::optional<double> parse_suffix(std::string_view suffix) {
  if (suffix.empty()) return 1.0;
  const auto power = std::string_view("kmgKMG").find(suffix.front());
  if (power == std::string_view::npos) return std::nullopt;
  suffix.remove_prefix(1);
  if (suffix.starts_with('i')) suffix.remove_prefix(1);
  if (suffix.starts_with('B')) suffix.remove_prefix(1);
  if (!suffix.empty()) return std::nullopt;
  return std::pow(1024.0, static_cast<double>(power % 3 + 1));
}

// Decimal, with a point in any locale of the application.
std::optional<double> parse_number(std::string_view value, bool with_suffix) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  value.remove_prefix(static_cast<std::size_t>(end - value.data()));
  const auto factor =
      with_suffix ? parse_suffix(value) : (value.empty() ? std::optional(1.0) : std::nullopt);
  if (!factor) return std::nullopt;
  return number * *factor;
}

// Exact, in a form that read_options() accepts.
std::string number_text(double value) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

// Elsewhere 0 means none, never or forever. No world has fewer ranks than one, any rank would be
// silent for too long, and nothing would travel.
bool is_above_zero(const OptionSpec& spec) {
  return spec.name == "min_np" || spec.name == "heartbeat" || spec.name == "ring_chunk";
}

std::string_view accepted(const OptionSpec& spec) {
  const bool above = is_above_zero(spec);
  switch (spec.type) {
    case text: return "any text";
    case choice: return spec.choices;
    case bytes:
      return above ? "a number of bytes above 0, with K, M or G if wanted"
                   : "a number of bytes, with K, M or G if wanted";
    case count: return above ? "a whole number from 1" : "a whole number from 0";
    case seconds:
      return above ? "a number of seconds above 0 and up to 1e9"
                   : "a number of seconds from 0 to 1e9";
  }
  return "";
}

// What rueda.options() reports of a world is accepted for the next one: the name of what moves its
// data, for which the option has no name of its own.
std::string as_option(const OptionSpec& spec, const std::string& value) {
  if (spec.name != "transport") return value;
  if (value == "shm+tcp") return "tcp";
  return value == "inproc" || value == "shm+mpi" ? "auto" : value;
}

Status assign(Options& options, const OptionSpec& spec, std::string_view source,
              const std::string& value) {
  const Status refused(ErrorCode::initialization,
                       str(source, "='", value, "' is not accepted: give ", accepted(spec)));
  if (const auto* field = std::get_if<std::string Options::*>(&spec.field)) {
    // Horovod accepts its log levels in either case.
    const std::string chosen = as_option(spec, spec.type == choice ? in_lower_case(value) : value);
    if (spec.type == choice && !is_one_of(chosen, spec.choices)) return refused;
    options.** field = chosen;
    return {};
  }
  const auto number = parse_number(value, spec.type == bytes);
  if (!number || (*number == 0 && is_above_zero(spec))) return refused;
  if (const auto* field = std::get_if<double Options::*>(&spec.field)) {
    if (*number > max_seconds) return refused;
    options.** field = *number;
    return {};
  }
  if (std::floor(*number) != *number || *number > 9e15) return refused;
  options.*std::get<std::int64_t Options::*>(spec.field) = static_cast<std::int64_t>(*number);
  return {};
}

}  // namespace

std::span<const OptionSpec> option_table() {
  return table;
}

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

Expected<Options> read_options(const Environment& environment,
                               const std::map<std::string, std::string>& overrides) {
  Options options;
  bool names_timeline_as_horovod = false;
  for (const OptionSpec& spec : table) {
    for (const std::string_view variable : {spec.environment, spec.horovod}) {
      if (variable.empty()) continue;
      const auto value = environment(variable);
      if (!value || value->empty()) continue;
      if (Status status = assign(options, spec, variable, *value); !status.ok()) return status;
      names_timeline_as_horovod |= spec.name == "timeline" && variable == spec.horovod;
      break;
    }
  }
  for (const auto& [name, value] : overrides) {
    const OptionSpec* found = nullptr;
    for (const OptionSpec& spec : table) {
      if (spec.name == name) found = &spec;
    }
    if (found == nullptr) {
      std::string known;
      for (const OptionSpec& spec : table) known += str(known.empty() ? "" : ", ", spec.name);
      return Status(ErrorCode::initialization,
                    str("there is no option '", name, "'; there are ", known));
    }
    if (Status status = assign(options, *found, name, value); !status.ok()) return status;
  }
  names_timeline_as_horovod &= !overrides.contains("timeline");
  if (options.timeline_format == "auto" && names_timeline_as_horovod) {
    options.timeline_format = "horovod";
  }
  return options;
}

std::string anchored(const std::string& path, const std::string& folder) {
  if (path.empty()) return path;
  return (std::filesystem::path(folder) / path).string();  // `path` if it is absolute
}

void anchor_paths(Options& options, const std::string& folder) {
  options.timeline = anchored(options.timeline, folder);
  options.flight_recorder = anchored(options.flight_recorder, folder);
}

std::string option_text(const OptionSpec& spec, const Options& options) {
  if (const auto* field = std::get_if<std::string Options::*>(&spec.field)) return options.**field;
  if (const auto* field = std::get_if<double Options::*>(&spec.field))
    return number_text(options.**field);
  return std::to_string(options.*std::get<std::int64_t Options::*>(spec.field));
}

}  // namespace rueda
