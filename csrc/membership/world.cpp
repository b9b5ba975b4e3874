#include "membership/world.h"

#include <unistd.h>

#include <utility>

#include "core/log.h"
#include "core/strings.h"
#include "membership/descriptor_limit.h"
#include "membership/host.h"
#include "membership/host_beacon.h"
#include "membership/inproc_world.h"
#include "membership/transport_registry.h"
#include "membership/world_facts.h"
#include "transport/control_socket.h"

namespace rueda {

namespace {

Status not_formed() {
  return Status(ErrorCode::initialization, "the world could not be formed");
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
  for (const TransportRow& row : transport_registry()) {
    const Status usable = row.can_use(mpi);
    facts.transports.push_back(
        {std::string(row.name), usable.ok() ? std::string() : usable.to_string()});
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

Expected<std::unique_ptr<Transport>> make_transport(const std::string& name, Bootstrap& bootstrap,
                                                    const MpiCapability& mpi, Time deadline) {
  for (const TransportRow& row : transport_registry()) {
    if (row.name == name) return row.make(bootstrap, mpi, deadline);
  }
  return Status(ErrorCode::internal, str("there is no transport '", name, "'"));
}

// What ranks of one host share beyond the transport. A transport other than shared memory that was
// asked for by name is left to work alone.
Expected<HostGroup> share_host(Bootstrap& bootstrap, const std::string& wanted_transport,
                               const Topology& topology, Time deadline) {
  const bool may_share = wanted_transport == "auto" || wanted_transport == "shm";
  if (!may_share) return HostGroup();
  return HostGroup::form(bootstrap, topology.host_of, deadline);
}

constexpr const char* shares_host = "shares host";

// Tells the others whether this rank is ready, and hears whether they are. A host shares memory
// only where each of its ranks says so.
Status agree_ready(Bootstrap& bootstrap, const Status& own, HostGroup& host, Time deadline) {
  using Text = Expected<std::string>;
  const char* const text = host.memory() ? shares_host : "";
  const auto all = bootstrap.allgather("ready", own.ok() ? Text(text) : Text(own), deadline);
  if (!own.ok()) return own;
  if (!all.ok()) return all.status();
  for (const int rank : host.ranks()) {
    if (all.value()[static_cast<std::size_t>(rank)] != shares_host) host.share_nothing();
  }
  return {};
}

// A host where ranks do not answer each other is of no use to the other hosts either.
Status measure_host(Bootstrap& bootstrap, HostGroup& host, Time deadline) {
  const Status own = host.ranks().empty() ? Status() : host.measure(bootstrap, deadline);
  const Status all = bootstrap.agree("measured", own, deadline);
  return own.ok() ? all : own;
}

}  // namespace

std::string Topology::describe(int peer) const {
  const auto index = static_cast<std::size_t>(peer);
  return str("rank ", peer, " (", host_names[index], ", pid ", process_ids[index], ")");
}

Expected<World> form_world(Bootstrap& bootstrap, const Options& options, const MpiCapability& mpi) {
  if (bootstrap.size() == 1) return solo_world();
  const Time deadline = Clock::now() + seconds(options.init_timeout);
  const auto beacon = light_beacon(bootstrap.rank());
  auto facts = exchange_facts(bootstrap, own_facts(options, mpi, beacon), deadline);
  if (!facts) return not_formed().because(facts.status());
  if (Status agreed = check_options_agree(facts.value()); !agreed.ok())
    return not_formed().because(agreed);
  if (Status confirmed = confirm_hosts(bootstrap, facts.value(), deadline); !confirmed.ok())
    return not_formed().because(confirmed);
  World world;
  world.topology = topology_of(bootstrap.rank(), facts.value());
  const auto chosen = choose_transport(options.transport, world.topology, facts.value());
  if (!chosen) return not_formed().because(chosen.status());

  if (Status room = provide_descriptors(world.topology.local_size); !room.ok())
    return not_formed().because(room);

  // All are collective, so the next is taken part in even where one has failed.
  auto control =
      open_control_socket(bootstrap, world.topology.host_of, options.interface, deadline);
  auto transport = make_transport(chosen.value(), bootstrap, mpi, deadline);
  auto host = share_host(bootstrap, options.transport, world.topology, deadline);
  const Status own = !control.ok()     ? control.status()
                     : !transport.ok() ? transport.status()
                                       : host.status();
  if (host.ok()) world.host = std::move(host).value();
  if (Status ready = agree_ready(bootstrap, own, world.host, deadline); !ready.ok())
    return not_formed().because(ready);
  if (Status measured = measure_host(bootstrap, world.host, deadline); !measured.ok())
    return not_formed().because(measured);
  world.control = std::move(control).value();
  world.transport = std::move(transport).value();
  log(LogLevel::info, world.topology.describe(world.topology.rank), " of ", world.topology.size,
      ", transport ", world.transport->name());
  return world;
}

}  // namespace rueda
