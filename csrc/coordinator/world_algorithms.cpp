#include "coordinator/world_algorithms.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/strings.h"

namespace rueda {

namespace {

std::size_t kept_buffers(const Options& options) {
  return static_cast<std::size_t>(options.batches_in_flight) + 1;
}

// The largest number of members on one host.
int max_members(const HostParts& parts) {
  std::size_t most = 1;
  for (const auto& part : parts.members) most = std::max(most, part.size());
  return static_cast<int>(most);
}

}  // namespace

WorldAlgorithms::WorldAlgorithms(const WorldLayout& layout, const Options& options)
    : layout_(layout), options_(options), status_(choose()) {}

Status WorldAlgorithms::choose() {
  if (layout_.host.memory()) {
    const bool measured = layout_.host.costs().exchange > 0;
    if (measured) host_policy_ = policy_of(layout_.host.costs());
    host_policy_.huge_pages = options_.huge_pages == "auto";
    on_host_ = measured
                   ? table_of(layout_.host.costs())
                   : AlgorithmTable::of_limit(static_cast<std::int64_t>(host_policy_.flat_limit));
  }
  auto chosen = AlgorithmTable::parse(options_.algorithm, on_host_);
  if (!chosen) {
    return Status(ErrorCode::initialization, "RUEDA_ALGORITHM").because(chosen.status());
  }
  if (layout_.host.memory()) on_host_ = std::move(chosen).value();
  return {};
}

HostParts WorldAlgorithms::parts_of_world() const {
  std::vector<int> ranks(static_cast<std::size_t>(layout_.topology.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return layout_.host.parts(ranks, layout_.topology.rank);
}

AlgorithmTable WorldAlgorithms::of_world() const {
  const HostParts parts = parts_of_world();
  return layout_.spans_hosts(parts) ? across(parts) : on_host_;
}

std::string WorldAlgorithms::describe() const {
  const HostParts parts = parts_of_world();
  const std::string text = of_world().to_string();
  if (!layout_.spans_hosts(parts) || max_members(parts) == 1) return text;
  return str(text, ";", alltoall_across(parts).to_string());
}

AlgorithmTable WorldAlgorithms::across(const HostParts& parts) const {
  const auto hosts = static_cast<int>(parts.members.size());
  const bool shares = max_members(parts) > 1;
  const AlgorithmTable measured = algorithms_across(layout_.link_costs, hosts, shares);
  // choose() has refused what it does not accept.
  return AlgorithmTable::parse(options_.algorithm, measured, Extent::several_hosts).value();
}

AlgorithmTable WorldAlgorithms::alltoall_across(const HostParts& parts) const {
  const AlgorithmTable measured = rueda::alltoall_across(layout_.link_costs, max_members(parts));
  return AlgorithmTable::parse(options_.algorithm, measured, Extent::alltoall_across).value();
}

std::unique_ptr<const SetHosts> WorldAlgorithms::hosts_of(const HostParts& parts,
                                                          const std::vector<int>& ranks) const {
  if (!layout_.spans_hosts(parts)) return nullptr;
  return std::make_unique<SetHosts>(parts.members, parts.index, parts.rank, ranks, across(parts),
                                    alltoall_across(parts), layout_.link_costs);
}

std::unique_ptr<Backend> WorldAlgorithms::make_backend() const {
  const std::size_t buffers = kept_buffers(options_);
  const HostGroup& host = layout_.host;
  auto backend = host.memory() ? make_onehost_backend(on_host_, host_policy_, buffers)
                               : make_ring_backend(buffers);
  if (!host.knows_hosts() || host.is_world(layout_.topology.size)) return backend;
  return make_hierarchical_backend(std::move(backend), host_policy_, buffers);
}

}  // namespace rueda
