#include "membership/world.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "core/strings.h"
#include "membership/descriptor_limit.h"
#include "membership/host.h"
#include "membership/host_beacon.h"
#include "membership/inproc_world.h"
#include "membership/world_facts.h"
#include "onehost/memory_transport.h"
#include "plan/algorithm_table.h"
#include "tcp/tcp_transport.h"
#include "transport/composite_transport.h"
#include "transport/control_socket.h"
#include "transport/socket.h"

namespace rueda {

namespace {

Status not_formed(const Status& cause) {
  return Status(ErrorCode::initialization, "the world could not be formed", cause.peer())
      .because(cause);
}

RankFacts own_facts(const Options& options, const MpiCapability& mpi,
                    const Expected<Listener>& beacon) {
  RankFacts facts;
  facts.version = RUEDA_VERSION;
  facts.build = build_identity();
  if (beacon) facts.beacon = beacon.value().address;
  facts.host_identity = host_identity();
  facts.host_name = host_name();
  facts.process_id = static_cast<int>(::getpid());
  facts.options = agreed_options(options);
  if (!mpi.make_transport) {
    facts.mpi_obstacle = mpi.unavailable.ok() ? "MPI was not started" : mpi.unavailable.to_string();
  }
  return facts;
}

Expected<std::vector<RankFacts>> exchange_facts(Bootstrap& bootstrap, const RankFacts& own,
                                                Time deadline) {
  const auto texts = bootstrap.allgather("world", own.encode(), deadline);
  if (!texts.ok()) return texts.status();
  std::vector<RankFacts> all;
  for (const std::string& text : texts.value()) {
    const auto peer = static_cast<int>(all.size());
    auto facts = RankFacts::decode(text);
    if (!facts)
      return Status(ErrorCode::initialization, str("rank ", peer), peer).because(facts.status());
    all.push_back(std::move(facts).value());
  }
  if (Status same = check_builds_agree(all); !same.ok()) return same;
  return all;
}

// The ranks of this host, and what they share. A transport requested by name is used alone: MPI,
// and on one host TCP.
Expected<HostGroup> form_host(Bootstrap& bootstrap, const Options& options,
                              const Topology& topology, Time deadline) {
  const bool is_one_host = topology.local_size == topology.size;
  if (options.transport == "mpi" || (options.transport == "tcp" && is_one_host)) return HostGroup();
  return HostGroup::form(bootstrap, topology.host_of, deadline);
}

// Reports for each rank of the world why it shares no memory with its host; empty if it does. A
// host shares memory only if all of its ranks report so.
Expected<std::vector<std::string>> agree_on_memory(Bootstrap& bootstrap, Expected<HostGroup>& host,
                                                   Time deadline) {
  const Expected<std::string> own =
      host ? Expected(host->obstacle()) : Expected<std::string>(host.status());
  auto all = bootstrap.allgather("host", own, deadline);
  if (!host) return host.status();
  if (!all) return all;
  std::vector<int> alone;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    if (!all.value()[static_cast<std::size_t>(rank)].empty()) alone.push_back(rank);
  }
  host->share_nothing(alone);
  return all;
}

// Chooses the faster of the two kinds, unless one was requested by name.
Expected<HostLinks> choose_between(Bootstrap& bootstrap, const Options& options, Links links,
                                   std::unique_ptr<Transport> opened,
                                   const std::vector<int>& host_of, Time deadline) {
  OpenLinks tcp;
  if (links == Links::mpi && options.transport == "auto") {
    tcp = [&] { return open_tcp_transport(bootstrap, options.interface, deadline); };
  }
  return choose_host_links(bootstrap, std::move(opened), tcp, host_of, deadline);
}

// Opens the data links between hosts; on a single host, between all ranks. Collective.
Expected<std::unique_ptr<Transport>> open_links(Links links, const MpiCapability& mpi,
                                                const HostGroup& host, Bootstrap& bootstrap,
                                                const std::string& interface, Time deadline) {
  switch (links) {
    case Links::memory: return make_memory_transport(host.memory(), bootstrap.size());
    case Links::mpi: return mpi.make_transport();
    case Links::tcp: return open_tcp_transport(bootstrap, interface, deadline);
  }
  return Status(ErrorCode::internal, "unknown links");
}

// Measures only where something depends on it, which is the same on all ranks. If the ranks of a
// host do not answer each other, the other hosts cannot go on either.
Status measure_host(Bootstrap& bootstrap, const Options& options, HostGroup& host, Time deadline) {
  if (!AlgorithmTable::is_partial(options.algorithm, Extent::one_host)) return {};
  const Status own = host.ranks().empty() ? Status() : host.measure(bootstrap, deadline);
  return bootstrap.agree("measured", own, deadline);
}

}  // namespace

std::string Topology::describe(int peer, int later) const {
  const auto index = static_cast<std::size_t>(peer);
  return str("rank ", later, " (", host_names[index], ", pid ", process_ids[index], ")");
}

int WorldLayout::process_of(int peer) const {
  if (const auto member = host.rank_of(peer)) return host.memory()->process_of(*member);
  const auto index = static_cast<std::size_t>(peer);
  const auto own = static_cast<std::size_t>(topology.rank);
  const bool is_here = topology.host_of[index] == topology.host_of[own];
  const bool is_own = topology.process_ids[index] == topology.process_ids[own];
  return is_here && !is_own ? topology.process_ids[index] : -1;
}

Expected<std::unique_ptr<Transport>> join_host(const HostGroup& host,
                                               std::unique_ptr<Transport> between) {
  if (!host.memory()) return between;
  auto within = make_memory_transport(host.memory(), between->size());
  if (!within) return within;
  std::vector<std::size_t> link_of;
  for (int rank = 0; rank < between->size(); ++rank) link_of.push_back(host.rank_of(rank) ? 0 : 1);
  std::vector<std::unique_ptr<Transport>> links;
  links.push_back(std::move(within).value());
  links.push_back(std::move(between));
  return std::unique_ptr<Transport>(
      std::make_unique<CompositeTransport>(std::move(links), std::move(link_of)));
}

Duration network_timeout(const Options& options) {
  if (options.recovery != "on") return default_network_timeout;
  return std::max(default_network_timeout, 2 * seconds(options.heartbeat));
}

Expected<World> form_world(Bootstrap& bootstrap, const Options& options, const MpiCapability& mpi,
                           const std::optional<KnownCosts>& known) {
  if (bootstrap.size() == 1) return solo_world();
  const Time deadline = Clock::now() + seconds(options.init_timeout);
  const auto beacon = light_beacon(bootstrap.rank());
  auto facts = exchange_facts(bootstrap, own_facts(options, mpi, beacon), deadline);
  if (!facts) return not_formed(facts.status());
  if (Status agreed = check_options_agree(facts.value()); !agreed.ok()) return not_formed(agreed);
  if (Status confirmed = confirm_hosts(bootstrap, facts.value(), deadline); !confirmed.ok())
    return not_formed(confirmed);
  World world;
  world.topology = topology_of(bootstrap.rank(), facts.value());
  const int local_size = world.topology.local_size;
  if (Status room = provide_descriptors(local_size); !room.ok()) return not_formed(room);
  provide_remote_descriptors(local_size, world.topology.size - local_size,
                             interfaces_of(options.interface).size());

  // All of these are collective, so each is joined even if an earlier one failed.
  auto host = form_host(bootstrap, options, world.topology, deadline);
  const auto obstacles = agree_on_memory(bootstrap, host, deadline);
  if (!obstacles) return not_formed(obstacles.status());
  world.host = std::move(host).value();
  const auto links = choose_links(options.transport, world.topology, facts.value(), *obstacles);
  if (!links) return not_formed(links.status());
  auto control = open_control_socket(bootstrap, world.topology.host_of, options.interface, deadline,
                                     network_timeout(options));
  auto transport = open_links(*links, mpi, world.host, bootstrap, options.interface, deadline);
  const Status own = control.ok() ? transport.status() : control.status();
  const Status ready = bootstrap.agree("ready", own, deadline);
  if (!ready.ok()) return not_formed(ready);
  if (known) {
    world.host.take_costs(known->host);
  } else if (Status measured = measure_host(bootstrap, options, world.host, deadline);
             !measured.ok()) {
    return not_formed(measured);
  }
  const std::vector<int>& host_of = world.topology.host_of;
  auto chosen = known ? keep_host_links(std::move(transport).value(), known->links, host_of)
                      : choose_between(bootstrap, options, *links, std::move(transport).value(),
                                       host_of, deadline);
  if (!chosen) return not_formed(chosen.status());
  world.link_costs = chosen->costs;
  world.links_tried = std::move(chosen->tried);
  if (*links == Links::memory) {
    transport = std::move(chosen->transport);
  } else {
    transport = join_host(world.host, std::move(chosen->transport));
  }
  const Status joined = bootstrap.agree("joined", transport.status(), deadline);
  if (!joined.ok()) return not_formed(joined);
  world.control = std::move(control).value();
  world.host.for_each_end(
      [&](int rank, PeerEnd end) { world.control->watch_end(rank, std::move(end)); });
  world.transport = std::move(transport).value();
  log(LogLevel::info, world.topology.describe(world.topology.rank), " of ", world.topology.size,
      ", transport ", world.transport->name());
  return world;
}

}  // namespace rueda
