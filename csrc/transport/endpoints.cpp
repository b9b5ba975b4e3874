#include "transport/endpoints.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "transport/interface_listeners.h"
#include "transport/socket.h"

namespace rueda {

namespace {

struct Listeners {
  Listener local;             // for ranks of this host
  InterfaceListeners remote;  // for those of other hosts, if there are any
};

Expected<Listeners> listen_for(std::span<const int> host_of, const std::string& interface) {
  auto local = listen_on(str("unix:@rueda-", random_name()));
  if (!local.ok()) return local.status();
  Listeners listeners{std::move(local).value(), {}};
  if (std::adjacent_find(host_of.begin(), host_of.end(), std::not_equal_to<>()) == host_of.end()) {
    return listeners;
  }
  auto remote = listen_on_interfaces(interface);
  if (!remote.ok()) return remote.status();
  listeners.remote = std::move(remote).value();
  return listeners;
}

// What a rank publishes about itself.
struct Contact {
  std::string local;                // its address for ranks of its host
  std::vector<std::string> remote;  // for those of others, one of each interface; may be empty
  std::string word;                 // random: rank 0's is the world's

  [[nodiscard]] std::string encode() const {
    std::string text = local;
    for (const std::string& address : remote) text += " " + address;
    return text + " " + word;
  }
  static Contact decode(const std::string& text) {
    const std::vector<std::string> words = words_of(text);
    if (words.size() < 2) return {};  // malformed: nobody can reach it
    Contact contact{words.front(), {}, words.back()};
    contact.remote.assign(words.begin() + 1, words.end() - 1);
    return contact;
  }
};

Contact contact_of(const Listeners& listeners) {
  Contact contact{listeners.local.address, {}, random_name()};
  for (const Listener& each : listeners.remote.listeners) contact.remote.push_back(each.address);
  return contact;
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
  std::vector<std::vector<std::string>> addresses;
  for (std::size_t peer = 0; peer < told->size(); ++peer) {
    Contact contact = Contact::decode((*told)[peer]);
    const bool same_host = host_of[peer] == host_of[static_cast<std::size_t>(rank)];
    addresses.push_back(same_host ? std::vector{contact.local} : std::move(contact.remote));
  }
  std::vector<Listener> all = std::move(listeners->remote.listeners);
  all.push_back(std::move(listeners->local));
  // Derived from the word that the ranks exchange and the secret that they shared before, so that
  // listening to the bootstrap alone does not reveal it.
  const std::string world = Contact::decode(told->front()).word;
  const Key key = Key(bootstrap.secret()).derive({"rueda " + names.name, world});
  return Connections::Settings{.name = names.name,
                               .protocol = names.protocol,
                               .rank = rank,
                               .addresses = std::move(addresses),
                               .listeners = std::move(all),
                               .key = key,
                               .network_timeout = names.network_timeout,
                               .own_hosts = std::move(listeners->remote.hosts)};
}

}  // namespace rueda
