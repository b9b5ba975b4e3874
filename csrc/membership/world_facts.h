// What each rank tells the others about itself, and what follows from all of it. Every rank
// computes the same from the same facts, so all ranks succeed or fail alike.
#pragma once

#include <string>
#include <vector>

#include "core/options.h"
#include "core/status.h"
#include "membership/world.h"

namespace rueda {

// Whether a rank can use a transport.
struct TransportFact {
  std::string name;
  std::string obstacle;  // why not; empty where it can
};

struct RankFacts {
  std::string host_identity;
  std::string host_name;
  int process_id = 0;
  std::vector<std::string> options;  // the texts of those that must agree, in the table's order
  std::vector<TransportFact> transports;

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Expected<RankFacts> decode(const std::string& text);
};

// The options of `options` that must agree, as they go into RankFacts.
[[nodiscard]] std::vector<std::string> agreed_options(const Options& options);

[[nodiscard]] Topology topology_of(int rank, const std::vector<RankFacts>& ranks);

// ErrorCode::initialization, naming the option, the values and the ranks that have them.
[[nodiscard]] Status check_options_agree(const std::vector<RankFacts>& ranks);

// The name of the transport that all will use. `wanted` is Options::transport.
[[nodiscard]] Expected<std::string> choose_transport(const std::string& wanted,
                                                     const Topology& topology,
                                                     const std::vector<RankFacts>& ranks);

}  // namespace rueda
