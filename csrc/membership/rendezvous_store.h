// The store behind bootstrap_rendezvous: a thread of rank 0 that answers the ranks.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/unique_fd.h"
#include "transport/socket.h"
#include "transport/socket_link.h"

namespace rueda {

// A question or an answer. Which fields matter depends on the verb.
struct RendezvousWords {
  enum class Verb : std::uint32_t {
    hello,    // rank, size                → ok | later (the rank is still in the world before) |
              // error
    put,      // key, value                → ok | error
    get,      // key                       → ok with value | error
    barrier,  //                           → ok, when all are there | error
    missing,  // who is not at the barrier → missing with value
    ok,
    later,
    error,  // value says why
  };
  Verb verb = Verb::ok;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::string key;
  std::string value;

  [[nodiscard]] std::vector<std::byte> to_frame() const;
  // An error where `payload` cannot be such words.
  [[nodiscard]] static Expected<RendezvousWords> parse(std::span<const std::byte> payload);
};

class RendezvousStore {
 public:
  RendezvousStore(Listener listener, int size);
  // Takes no newcomers, and waits until those who are here have left, a few seconds at most.
  ~RendezvousStore();
  RendezvousStore(const RendezvousStore&) = delete;
  RendezvousStore& operator=(const RendezvousStore&) = delete;

 private:
  struct Client {
    SocketLink link;
    int rank = -1;
    bool at_barrier = false;
  };

  void serve();
  void sleep();
  void listen_to(Client& client);
  void answer(Client& client, const RendezvousWords& question);
  void greet(Client& client, const RendezvousWords& question);
  void reply(Client& client, RendezvousWords::Verb verb, std::string value = {});
  void settle_barrier();
  [[nodiscard]] std::vector<int> missing_ranks() const;

  Listener listener_;
  const int size_;
  std::map<std::string, std::string> entries_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<int> departed_;  // were here, and have left
  UniqueFd stop_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace rueda
