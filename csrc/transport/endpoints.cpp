#include "transport/endpoints.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "transport/socket.h"

namespace rueda {

namespace {

// One listener for ranks of this host, and one for those of other hosts, if there are any.
Expected<std::vector<Listener>> listen_for(std::span<const int> host_of,
                                           const std::string& interface) {
  std::vector<Listener> listeners;
  auto local = listen_on(str("unix:@rueda-", random_name()));
  if (!local.ok()) return local.status();
  listeners.push_back(std::move(local).value());
  if (std::adjacent_find(host_of.begin(), host_of.end(), std::not_equal_to<>()) == host_of.end()) {
    return listeners;
  }
  const auto host = reachable_address(interface);
  if (!host.ok()) return host.status();
  auto remote = listen_on(join_tcp(host.value(), 0));
  if (!remote.ok()) return remote.status();
  listeners.push_back(std::move(remote).value());
  return listeners;
}

// What a rank publishes about itself.
struct Contact {
  std::string local;   // its address for ranks of its host
  std::string remote;  // for those of others; may be missing
  std::string word;    // random: rank 0's is the world's

  [[nodiscard]] std::string encode() const { return local + " " + remote + " " + word; }
  static Contact decode(const std::string& text) {
    const auto first = text.find(' ');
    const auto last = text.rfind(' ');
    if (first == last) return {};  // malformed: nobody can reach it
    return {text.substr(0, first), text.substr(first + 1, last - first - 1), text.substr(last + 1)};
  }
};

Contact contact_of(const std::vector<Listener>& listeners) {
  const bool has_remote = listeners.size() > 1;
  return {listeners.front().address, has_remote ? listeners[1].address : "", random_name()};
}

}  // namespace

Expected<Connections::Settings> exchange_endpoints(Bootstrap& bootstrap, const EndpointNames& names,
                                                   std::span<const int> host_of,
                                                   const std::string& interface, Time deadline) {
  const int rank = bootstrap.rank();
  auto listeners = listen_for(host_of, interface);
  using Text = Expected<std::string>;
  const auto told = bootstrap.allgather(
      names.key, listeners ? Text(contact_of(*listeners).encode()) : Text(listeners.status()),
      deadline);
  if (!listeners) return listeners.status();
  if (!told) return told.status();
  std::vector<std::string> addresses;
  for (std::size_t peer = 0; peer < told->size(); ++peer) {
    const Contact contact = Contact::decode((*told)[peer]);
    const bool same_host = host_of[peer] == host_of[static_cast<std::size_t>(rank)];
    addresses.push_back(same_host ? contact.local : contact.remote);
  }
  // Derived from the word that the ranks exchange and the secret that they shared before, so that
  // listening to the bootstrap alone does not reveal it.
  const std::string world = Contact::decode(told->front()).word;
  const Key key = Key(bootstrap.secret()).derive({"rueda " + names.name, world});
  return Connections::Settings{.name = names.name,
                               .protocol = names.protocol,
                               .rank = rank,
                               .addresses = std::move(addresses),
                               .listeners = std::move(listeners).value(),
                               .key = key,
                               .patience = names.patience};
}

}  // namespace rueda
