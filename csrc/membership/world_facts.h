// What each rank announces about itself, and what follows from the announcements. Every rank
// computes the same from the same facts, so all of them succeed or fail together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/options.h"
#include "core/status.h"
#include "membership/world.h"

namespace rueda {

struct RankFacts {
  std::string version;  // of Rueda
  std::string build;    // build_identity()
  std::string host_identity;
  std::string host_name;
  std::string beacon;  // reveals the rank's kernel, see host_beacon.h
  int process_id = 0;
  std::vector<std::string> options;  // values of those that must agree, in table order
  std::string mpi_obstacle;          // why MPI cannot carry its data; empty if it can

  [[nodiscard]] std::string encode() const;
  // For another version or build, sets only `version`, `build` and `host_name`: the format of the
  // rest may differ.
  [[nodiscard]] static Expected<RankFacts> decode(const std::string& text);
};

// Equal for two builds if and only if their librueda comes from the same sources: only then do
// shared memory and messages have the same layout.
[[nodiscard]] std::string_view build_identity();

// ErrorCode::initialization, naming the versions, the builds, and which ranks and hosts have them.
[[nodiscard]] Status check_builds_agree(const std::vector<RankFacts>& ranks);

// The values of `options` that must agree, for RankFacts.
[[nodiscard]] std::vector<std::string> agreed_options(const Options& options);

[[nodiscard]] Topology topology_of(int rank, const std::vector<RankFacts>& ranks);

// ErrorCode::initialization, naming the option, the values and which ranks have them.
[[nodiscard]] Status check_options_agree(const std::vector<RankFacts>& ranks);

// What carries the data between all pairs of ranks.
enum class Links {
  memory,  // shared by the ranks of the only host
  mpi,     // between hosts; memory within hosts that share it, unless only MPI was requested
  tcp,     // the same without MPI
};

// `wanted`: Options::transport. `memory_obstacles`: for each rank, why it shares no memory with its
// host; empty if it does.
[[nodiscard]] Expected<Links> choose_links(const std::string& wanted, const Topology& topology,
                                           const std::vector<RankFacts>& ranks,
                                           const std::vector<std::string>& memory_obstacles);

}  // namespace rueda
