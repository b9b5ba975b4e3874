#include "membership/world.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "core/log.h"
#include "core/strings.h"
#include "membership/host.h"
#include "membership/inproc_world.h"
#include "membership/world_card.h"
#include "transport/control_socket.h"
#include "transport/shm.h"

namespace rueda {

namespace {

using Cards = std::vector<WorldCard>;

struct Setup {
  Bootstrap& bootstrap;
  const MpiCapability& mpi;
  Time deadline;
};

// A bulk transport is a row: how it is called, whether a rank can use it, whether it spans hosts, how it is made.
struct TransportSpec {
  std::string_view name;
  Status WorldCard::* available;
  bool spans_hosts;
  Expected<std::unique_ptr<Transport>> (*make)(Setup&);
};

constexpr TransportSpec transport_table[] = {
    {"shm", &WorldCard::shm, false,
     [](Setup& setup) { return make_shm_transport(setup.bootstrap, setup.deadline); }},
    {"mpi", &WorldCard::mpi, true, [](Setup& setup) { return setup.mpi.make_transport(); }},
};

Topology topology_of(const Cards& cards, int rank) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(cards.size());
  std::map<std::string, int> hosts;
  std::vector<int> ranks_on;
  std::vector<int> local_ranks;
  for (const WorldCard& card : cards) {
    const int host = hosts.try_emplace(card.host, static_cast<int>(hosts.size())).first->second;
    if (static_cast<std::size_t>(host) == ranks_on.size()) ranks_on.push_back(0);
    local_ranks.push_back(ranks_on[static_cast<std::size_t>(host)]++);
    topology.host_of.push_back(host);
    topology.host_names.push_back(card.host_name);
    topology.process_ids.push_back(card.process_id);
  }
  const int own_host = topology.host_of[static_cast<std::size_t>(rank)];
  topology.local_rank = local_ranks[static_cast<std::size_t>(rank)];
  topology.local_size = ranks_on[static_cast<std::size_t>(own_host)];
  const auto has_such_a_rank = [&](int count) { return count > topology.local_rank; };
  topology.cross_rank = static_cast<int>(
      std::count_if(ranks_on.begin(), ranks_on.begin() + own_host, has_such_a_rank));
  topology.cross_size =
      static_cast<int>(std::count_if(ranks_on.begin(), ranks_on.end(), has_such_a_rank));
  topology.homogeneous = std::all_of(ranks_on.begin(), ranks_on.end(),
                                     [&](int count) { return count == ranks_on.front(); });
  return topology;
}

// "64M on ranks 0 and 1, 16M on rank 2"
std::string describe_values(const std::map<std::string, std::vector<int>>& ranks_by_value) {
  std::string text;
  for (const auto& [value, ranks] : ranks_by_value) {
    text += str(text.empty() ? "" : ", ", value.empty() ? "''" : value, " on ", describe_ranks(ranks));
  }
  return text;
}

Status check_agreement(const Cards& cards) {
  for (const OptionSpec& spec : option_table()) {
    if (!spec.must_agree) continue;
    std::map<std::string, std::vector<int>> ranks_by_value;
    for (std::size_t rank = 0; rank < cards.size(); ++rank) {
      const auto value = cards[rank].options.find(std::string(spec.name));
      ranks_by_value[value == cards[rank].options.end() ? "unknown" : value->second].push_back(
          static_cast<int>(rank));
    }
    if (ranks_by_value.size() > 1) {
      return {ErrorCode::initialization,
              str("option ", spec.name, " (", spec.environment, ") differs between ranks: ",
                  describe_values(ranks_by_value))};
    }
  }
  return {};
}

// Why the ranks cannot use a transport together; ok where they can.
Status judge(const TransportSpec& spec, const Cards& cards, const Topology& topology) {
  std::map<std::string, std::vector<int>> ranks_by_reason;
  for (std::size_t rank = 0; rank < cards.size(); ++rank) {
    const Status& available = cards[rank].*spec.available;
    if (!available.ok()) ranks_by_reason[available.to_string()].push_back(static_cast<int>(rank));
  }
  const bool several_hosts = std::any_of(topology.host_of.begin(), topology.host_of.end(),
                                         [](int host) { return host != 0; });
  if (several_hosts && !spec.spans_hosts) {
    return {ErrorCode::initialization, str(spec.name, " (the ranks are on several hosts)")};
  }
  if (ranks_by_reason.empty()) return {};
  return {ErrorCode::initialization, str(spec.name, " (", describe_values(ranks_by_reason), ")")};
}

Expected<const TransportSpec*> choose_transport(const std::string& wanted, const Cards& cards,
                                                const Topology& topology) {
  std::string reasons;
  for (const TransportSpec& spec : transport_table) {
    if (wanted != "auto" && wanted != spec.name) continue;
    const Status verdict = judge(spec, cards, topology);
    if (verdict.ok()) return &spec;
    reasons += str(reasons.empty() ? "" : "; ", verdict.message());
  }
  return Status(ErrorCode::initialization,
                str(wanted == "auto" ? "no transport serves all ranks"
                                     : str("the transport that was asked for does not serve all ranks"),
                    ": ", reasons));
}

WorldCard own_card(const Options& options, const MpiCapability& mpi) {
  WorldCard card;
  card.host = host_identity();
  card.host_name = host_name();
  card.process_id = static_cast<int>(::getpid());
  card.shm = can_use_shm();
  card.mpi = mpi.unavailable;
  if (!mpi.make_transport && card.mpi.ok()) {
    card.mpi = Status(ErrorCode::unsupported, "MPI is not in use");
  }
  for (const OptionSpec& spec : option_table()) {
    if (spec.must_agree) card.options[std::string(spec.name)] = option_text(spec, options);
  }
  return card;
}

Expected<Cards> exchange_cards(Bootstrap& bootstrap, const WorldCard& own, Time deadline) {
  const auto key = [](int rank) { return str("world/", rank); };
  if (Status status = bootstrap.put(key(bootstrap.rank()), encode(own)); !status) return status;
  if (Status status = bootstrap.barrier(deadline); !status) return status;
  Cards cards;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    const auto text = bootstrap.get(key(rank));
    if (!text) return text.status();
    auto card = decode_card(text.value());
    if (!card) {
      return Status(ErrorCode::initialization,
                    str("rank ", rank, " runs another version of Rueda than rank ", bootstrap.rank()));
    }
    cards.push_back(std::move(*card));
  }
  return cards;
}

}  // namespace

// Every rank decides from the same cards, so that all come to the same result.
Expected<World> form_world(Bootstrap& bootstrap, const Options& options, const MpiCapability& mpi) {
  if (bootstrap.size() == 1) return solo_world();
  Setup setup{bootstrap, mpi, Clock::now() + seconds(options.init_timeout)};
  auto cards = exchange_cards(bootstrap, own_card(options, mpi), setup.deadline);
  if (!cards) return cards.status();
  if (Status status = check_agreement(*cards); !status) return status;

  World world;
  world.topology = topology_of(*cards, bootstrap.rank());
  const auto spec = choose_transport(options.transport, *cards, world.topology);
  if (!spec) return spec.status();
  auto control = open_control_socket(bootstrap, world.topology.host_of, options.interface,
                                     setup.deadline);
  if (!control) return control.status();
  auto transport = spec.value()->make(setup);
  if (!transport) return transport.status();
  world.control = *std::move(control);
  world.transport = *std::move(transport);
  log(LogLevel::info, world.topology.describe(world.topology.rank), " of ", world.topology.size,
      ", transport ", world.transport->name());
  return world;
}

}  // namespace rueda
