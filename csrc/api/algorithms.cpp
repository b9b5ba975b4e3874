#include <algorithm>
#include <vector>

#include "api/current_runtime.h"
#include "plan/link_costs.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

AlgorithmChoice choose_across_hosts(const Runtime& runtime, std::int64_t bytes) {
  const std::vector<int>& host_of = runtime.topology().host_of;
  const int hosts = host_of.empty() ? 1 : 1 + *std::max_element(host_of.begin(), host_of.end());
  const Algorithm algorithm = runtime.epoch().algorithms().of_world().choose(bytes);
  AlgorithmChoice choice;
  choice.algorithm = choice.registered = name_of(algorithm);
  const LinkCosts& costs = runtime.epoch().layout().link_costs;
  if (!costs.is_measured) return choice;
  choice.predicted_us = choice.predicted_registered_us =
      cost_across(algorithm, costs, hosts, bytes) / 1000;
  return choice;
}

}  // namespace

AlgorithmChoice choose_algorithm(std::int64_t bytes) {
  if (bytes < 0) throw InvalidArgumentError("a number of bytes cannot be negative");
  const auto runtime = current_runtime();
  const Algorithm algorithm = runtime->epoch().algorithms().on_host().choose(bytes);
  const HostCosts& costs = runtime->epoch().layout().host.costs();
  const auto length = static_cast<std::size_t>(bytes);
  AlgorithmChoice choice;
  choice.algorithm = choice.registered = name_of(algorithm);
  if (!runtime->epoch().layout().host.is_world(runtime->topology().size)) {
    return choose_across_hosts(*runtime, bytes);
  }
  if (algorithm == Algorithm::ring) return choice;
  if (length <= line_bytes) {
    choice.algorithm = choice.registered = "line";
  } else if (algorithm == Algorithm::staged ||
             length >= runtime->epoch().algorithms().host_policy().registered_min) {
    choice.registered = name_of(Algorithm::direct);
  }
  const auto predict = [&](const std::string& name, const MeasuredCost& direct) {
    if (name == "line") return costs.exchange / 1000;
    const MeasuredCost& cost = name == name_of(Algorithm::direct)   ? direct
                               : name == name_of(Algorithm::staged) ? costs.staged
                                                                    : costs.flat;
    return costs.at(cost, length) / 1000;
  };
  choice.predicted_us = predict(choice.algorithm, costs.direct);
  choice.predicted_registered_us = predict(choice.registered, costs.registered);
  return choice;
}

std::vector<HostLink> host_links() {
  std::vector<HostLink> links;
  const auto runtime = current_runtime();  // kept alive: it may be replaced meanwhile
  for (const TriedLink& tried : runtime->epoch().layout().links_tried) {
    const double ns_per_byte = tried.costs.per_byte;
    const bool is_known = tried.costs.is_measured && ns_per_byte > 0;
    links.push_back({tried.transport, tried.costs.is_measured ? tried.costs.latency / 1000 : 0,
                     is_known ? 8 / ns_per_byte : 0, tried.obstacle});
  }
  return links;
}

}  // namespace rueda
