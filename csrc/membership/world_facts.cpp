#include "membership/world_facts.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/strings.h"
#include "plan/wire.h"

namespace rueda {

namespace {

// In every format, its number, the version, the build and the host name come first.
constexpr std::uint64_t facts_format = 2;
constexpr std::uint64_t first_format = 1;  // had no version
constexpr std::size_t shown_build_digits = 12;

Status no_world(const std::string& text) {
  return Status(ErrorCode::initialization, text);
}

// Gives "64M" for 67108864.
std::string readable(const OptionSpec& spec, const std::string& text) {
  if (spec.type != OptionType::bytes || text.empty()) return text;
  unsigned long long value = 0;
  const char* end = text.data() + text.size();
  if (std::from_chars(text.data(), end, value).ptr != end) return text;
  std::string suffix;
  for (const char* next = "KMG"; *next != '\0' && value != 0 && value % 1024 == 0; ++next) {
    value /= 1024;
    suffix = *next;
  }
  return str(value, suffix);
}

// Groups ranks by text, ordered by the first rank of each group.
class Groups {
 public:
  // `host`: named along with the ranks; empty if it does not matter.
  void add(const std::string& text, int rank, const std::string& host = {}) {
    auto found = std::find_if(groups_.begin(), groups_.end(),
                              [&](const Group& group) { return group.text == text; });
    if (found == groups_.end()) found = groups_.insert(groups_.end(), Group{text, {}, {}});
    found->ranks.push_back(rank);
    if (!host.empty()) found->hosts.insert(host);
  }
  [[nodiscard]] std::size_t size() const { return groups_.size(); }
  // "64M on ranks 0 and 1, 16M on rank 2"
  [[nodiscard]] std::string describe() const {
    std::string text;
    for (const Group& group : groups_) {
      text += str(text.empty() ? "" : ", ", group.text.empty() ? "''" : group.text, " on ",
                  describe_ranks(group.ranks));
      const char* separator = " (";
      for (const std::string& host : group.hosts) {
        text += separator + host;
        separator = ", ";
      }
      if (!group.hosts.empty()) text += ")";
    }
    return text;
  }

 private:
  struct Group {
    std::string text;
    std::vector<int> ranks;
    std::set<std::string> hosts;
  };
  std::vector<Group> groups_;
};

// Why memory cannot serve all pairs; empty if it can.
std::string obstacle_to_memory(const Topology& topology, const std::vector<std::string>& of_ranks) {
  if (topology.local_size != topology.size) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < topology.host_names.size(); ++i) {
      if (static_cast<std::size_t>(topology.host_of[i]) == names.size())
        names.push_back(topology.host_names[i]);
    }
    std::string text = str("the ranks are on ", names.size(), " hosts:");
    for (const std::string& name : names) text += " " + name;
    return text;
  }
  Groups obstacles;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    if (!of_ranks[rank].empty()) obstacles.add(of_ranks[rank], static_cast<int>(rank));
  }
  return obstacles.describe();
}

std::string obstacle_to_mpi(const std::vector<RankFacts>& ranks) {
  Groups obstacles;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string& obstacle = ranks[rank].mpi_obstacle;
    if (!obstacle.empty()) obstacles.add(obstacle, static_cast<int>(rank));
  }
  return obstacles.describe();
}

}  // namespace

std::string RankFacts::encode() const {
  Writer writer;
  writer.unsigned_integer(facts_format);
  writer.text(version);
  writer.text(build);
  writer.text(host_name);
  writer.text(host_identity);
  writer.text(beacon);
  writer.integer(process_id);
  writer.unsigned_integer(options.size());
  for (const std::string& option : options) writer.text(option);
  writer.text(mpi_obstacle);
  const auto bytes = writer.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Expected<RankFacts> RankFacts::decode(const std::string& text) {
  Reader reader(std::as_bytes(std::span(text)));
  RankFacts facts;
  const std::uint64_t format = reader.unsigned_integer();
  facts.version = reader.text();
  facts.build = format == first_format ? std::string() : reader.text();
  facts.host_name = reader.text();
  if (format == first_format) facts.version = "older";
  if (!reader.ok()) return no_world("sent facts that cannot be understood");
  if (facts.version != RUEDA_VERSION || facts.build != build_identity()) return facts;
  facts.host_identity = reader.text();
  facts.beacon = reader.text();
  facts.process_id = static_cast<int>(reader.integer());
  facts.options.resize(reader.size());
  for (std::string& option : facts.options) option = reader.text();
  facts.mpi_obstacle = reader.text();
  if (format == facts_format && reader.ok() && reader.at_end()) return facts;
  return no_world("sent facts that cannot be understood");
}

std::vector<std::string> agreed_options(const Options& options) {
  std::vector<std::string> texts;
  for (const OptionSpec& spec : option_table()) {
    if (spec.must_agree) texts.push_back(option_text(spec, options));
  }
  return texts;
}

Topology topology_of(int rank, const std::vector<RankFacts>& ranks) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(ranks.size());
  std::map<std::string, int> hosts;
  std::vector<int> ranks_on;  // each host
  for (const RankFacts& facts : ranks) {
    const int host =
        hosts.emplace(facts.host_identity, static_cast<int>(hosts.size())).first->second;
    if (static_cast<std::size_t>(host) == ranks_on.size()) ranks_on.push_back(0);
    if (static_cast<int>(topology.host_of.size()) == rank) {
      topology.local_rank = ranks_on[static_cast<std::size_t>(host)];
    }
    ++ranks_on[static_cast<std::size_t>(host)];
    topology.host_of.push_back(host);
    topology.host_names.push_back(facts.host_name);
    topology.process_ids.push_back(facts.process_id);
  }
  const int own = topology.host_of[static_cast<std::size_t>(rank)];
  topology.local_size = ranks_on[static_cast<std::size_t>(own)];
  const auto has_this_local_rank = [&](int count) { return count > topology.local_rank; };
  topology.cross_rank = static_cast<int>(
      std::count_if(ranks_on.begin(), ranks_on.begin() + own, has_this_local_rank));
  topology.cross_size =
      static_cast<int>(std::count_if(ranks_on.begin(), ranks_on.end(), has_this_local_rank));
  topology.homogeneous = std::all_of(ranks_on.begin(), ranks_on.end(),
                                     [&](int count) { return count == ranks_on[0]; });
  return topology;
}

Status check_builds_agree(const std::vector<RankFacts>& ranks) {
  Groups builds;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankFacts& facts = ranks[rank];
    const std::string build =
        facts.build.empty() ? "" : " (build " + facts.build.substr(0, shown_build_digits) + ")";
    builds.add(facts.version + build, static_cast<int>(rank), facts.host_name);
  }
  if (builds.size() <= 1) return {};
  return no_world(str("the ranks run different builds of Rueda: ", builds.describe(),
                      ". Install the same one everywhere"));
}

Status check_options_agree(const std::vector<RankFacts>& ranks) {
  std::size_t index = 0;
  for (const OptionSpec& spec : option_table()) {
    if (!spec.must_agree) continue;
    Groups values;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].options.size() <= index)
        return no_world("ranks use different versions of Rueda");
      values.add(readable(spec, ranks[rank].options[index]), static_cast<int>(rank));
    }
    if (values.size() > 1) {
      return no_world(str("option ", spec.name, " (", spec.environment,
                          ") differs between ranks: ", values.describe()));
    }
    ++index;
  }
  return {};
}

Expected<Links> choose_links(const std::string& wanted, const Topology& topology,
                             const std::vector<RankFacts>& ranks,
                             const std::vector<std::string>& memory_obstacles) {
  const std::string memory = obstacle_to_memory(topology, memory_obstacles);
  const std::string mpi = obstacle_to_mpi(ranks);
  const char* const asked_for = "the requested transport (RUEDA_TRANSPORT) cannot be used: ";
  if (wanted == "tcp") return Links::tcp;
  if (wanted != "mpi" && memory.empty()) return Links::memory;
  if (wanted == "shm") return no_world(str(asked_for, "shm: ", memory));
  if (mpi.empty()) return Links::mpi;
  if (wanted == "mpi") return no_world(str(asked_for, "mpi: ", mpi));
  return Links::tcp;
}

}  // namespace rueda
