// What each rank tells the others about itself, and what follows from all of it. Every rank
// computes the same from the same facts, so all ranks succeed or fail alike.
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
  std::string beacon;  // where the rank shows which kernel it runs on, see host_beacon.h
  int process_id = 0;
  std::vector<std::string> options;  // the texts of those that must agree, in the table's order
  std::string mpi_obstacle;          // why MPI cannot move its data; empty where it can

  [[nodiscard]] std::string encode() const;
  // Of another version or build there is no more than `version`, `build` and `host_name`: what
  // comes after them may have another form.
  [[nodiscard]] static Expected<RankFacts> decode(const std::string& text);
};

// Equal for two builds exactly when librueda was made of the same sources: what ranks share in
// memory and send each other has then the same layout.
[[nodiscard]] std::string_view build_identity();

// ErrorCode::initialization, naming the versions, the builds, and the ranks and hosts that have
// them.
[[nodiscard]] Status check_builds_agree(const std::vector<RankFacts>& ranks);

// The options of `options` that must agree, as they go into RankFacts.
[[nodiscard]] std::vector<std::string> agreed_options(const Options& options);

[[nodiscard]] Topology topology_of(int rank, const std::vector<RankFacts>& ranks);

// ErrorCode::initialization, naming the option, the values and the ranks that have them.
[[nodiscard]] Status check_options_agree(const std::vector<RankFacts>& ranks);

// What moves the data of all pairs of ranks.
enum class Links {
  memory,  // that the ranks of the only host share
  mpi,     // between hosts; memory within those that share it, unless MPI alone was asked for
  tcp,     // the same without MPI
};

// `wanted` is Options::transport; `memory_obstacles`: of each rank, why it shares no memory with
// its host, empty where it does.
[[nodiscard]] Expected<Links> choose_links(const std::string& wanted, const Topology& topology,
                                           const std::vector<RankFacts>& ranks,
                                           const std::vector<std::string>& memory_obstacles);

}  // namespace rueda
