#include "membership/host_links.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "membership/link_trial.h"

namespace rueda {

namespace {

constexpr Duration trial_time = std::chrono::seconds(2);

bool are_several(const std::vector<int>& host_of) {
  return std::adjacent_find(host_of.begin(), host_of.end(), std::not_equal_to<>()) != host_of.end();
}

Expected<HostLinks> measure(Bootstrap& world, const std::string& name,
                            std::unique_ptr<Transport> transport, const std::vector<int>& host_of,
                            Time end, Time deadline) {
  const auto costs = measure_links(world, name, *transport, host_of, end, deadline);
  if (!costs) return costs.status();
  HostLinks links{std::move(transport), costs.value(), {}};
  links.tried.push_back({std::string(links.transport->name()), links.costs, {}});
  return links;
}

Expected<HostLinks> open(Bootstrap& world, const OpenLinks& open_links,
                         const std::vector<int>& host_of, Time deadline) {
  auto opened = open_links();
  const Status all = world.agree("links/second/open", opened.status(), deadline);
  if (!all.ok()) return all;
  return measure(world, "links/second", std::move(opened).value(), host_of,
                 std::min(deadline - trial_time, Clock::now() + trial_time), deadline);
}

}  // namespace

Expected<HostLinks> choose_host_links(Bootstrap& world, std::unique_ptr<Transport> first,
                                      const OpenLinks& second, const std::vector<int>& host_of,
                                      Time deadline) {
  if (!are_several(host_of)) return HostLinks{std::move(first), {}, {}};
  auto chosen = measure(world, "links", std::move(first), host_of, deadline, deadline);
  if (!chosen || !second) return chosen;
  auto other = open(world, second, host_of, deadline);
  if (!other) {
    log(LogLevel::debug, "only ", chosen->transport->name(),
        " is used between hosts: ", other.status().to_string());
    chosen->tried.push_back({"tcp", {}, other.status().to_string()});
    return chosen;
  }
  if (is_quicker(other->costs, chosen->costs)) std::swap(chosen.value(), other.value());
  chosen->tried.push_back(other->tried.front());
  return chosen;
}

HostLinks keep_host_links(std::unique_ptr<Transport> transport, const std::vector<TriedLink>& tried,
                          const std::vector<int>& host_of) {
  HostLinks links{std::move(transport), {}, {}};
  if (!are_several(host_of) || tried.empty()) return links;
  const std::string name(links.transport->name());
  const auto same = std::find_if(tried.begin(), tried.end(), [&](const TriedLink& link) {
    return link.transport == name && link.obstacle.empty();
  });
  links.costs = (same == tried.end() ? tried.front() : *same).costs;
  links.tried.push_back({name, links.costs, {}});
  return links;
}

}  // namespace rueda
