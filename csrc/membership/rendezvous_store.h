// The store behind bootstrap_rendezvous: a thread of rank 0 that answers the ranks. The launcher's
// store (launcher/store/) speaks the same protocol.
//
// A client must first prove, within a few seconds and in short frames, that it knows the job's
// secret. The store must do the same before a rank tells it anything. Neither sends the secret:
//
//   rank                                        store
//   hello      rank, size, random word     →
//                                          ←    challenge  its random word, its proof
//   prove      the rank's proof            →
//                                          ←    ok | later | error
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/unique_fd.h"
#include "transport/key.h"
#include "transport/socket.h"
#include "transport/socket_link.h"

namespace rueda {

// A question or an answer; the verb determines which fields are used.
struct RendezvousWords {
  enum class Verb : std::uint32_t {
    hello,    // rank, size, key: a random word → challenge | error
    put,      // key, value                → ok | error
    get,      // key                       → ok with value | error
    barrier,  //                           → ok, when all are there, with all keys and values that
              //                             were put since the last one | error | lost
    missing,  // who is not at the barrier → missing with value
    ok,
    later,
    error,      // value says why
    challenge,  // key: a random word, value: the store's proof
    prove,      // value: the rank's proof → ok | later (the rank is still in its previous world) |
                // error
    lost,       // rank: it has ended and will not come, value says how (the launcher's store only)
  };
  Verb verb = Verb::ok;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::string key;
  std::string value;

  [[nodiscard]] std::vector<std::byte> to_frame() const;
  // An error if `payload` cannot be a message.
  [[nodiscard]] static Expected<RendezvousWords> parse(std::span<const std::byte> payload);
};

// Joins several texts into one, and splits them again; an error if it cannot be split.
void append_text(std::string& texts, std::string_view text);
[[nodiscard]] Expected<std::vector<std::string>> split_texts(std::string_view texts);

// What both sides of a conversation know about it.
struct RendezvousHello {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::string rank_word;
  std::string store_word;

  [[nodiscard]] static Key key_of(const std::string& secret);
  [[nodiscard]] std::string proof_of_store(const Key& key) const;
  [[nodiscard]] std::string proof_of_rank(const Key& key) const;
};
// Length of the random words in characters.
inline constexpr std::size_t rendezvous_word_length = 32;

class RendezvousStore {
 public:
  RendezvousStore(Listener listener, int size, const std::string& secret);
  // The same at several addresses.
  RendezvousStore(std::vector<Listener> listeners, int size, const std::string& secret);
  // Admits no newcomers, and waits until the present clients have left, a few seconds at most.
  ~RendezvousStore();
  // Shortens that wait to a second: the world was not formed, and a rank may be why.
  void hurry() { is_hurried_ = true; }
  RendezvousStore(const RendezvousStore&) = delete;
  RendezvousStore& operator=(const RendezvousStore&) = delete;

 private:
  struct Client {
    SocketLink link;
    Time since;     // when it connected
    int rank = -1;  // until it has proved that it knows the secret
    bool at_barrier = false;
    bool rejected = false;  // has been sent its last answer
    RendezvousHello hello;
  };

  void serve();
  void sleep();
  void accept_all();
  void accept_all_at(const Listener& listener);
  void drop_oldest_pending();
  void reject(Client& client, const std::string& why);
  void take_turns();
  void listen_to(Client& client);
  void answer(Client& client, const RendezvousWords& question);
  void challenge(Client& client, const RendezvousWords& question);
  void admit(Client& client, const RendezvousWords& question);
  void reply(Client& client, RendezvousWords::Verb verb, std::string value = {},
             std::string key = {});
  void refuse(Client& client, RendezvousWords::Verb verb, std::string value = {});
  void settle_barrier();
  [[nodiscard]] std::vector<int> missing_ranks() const;

  std::vector<Listener> listeners_;
  const int size_;
  const Key key_;
  Time accept_after_{};  // there was no descriptor left
  std::map<std::string, std::string> entries_;
  std::string fresh_;  // keys and values since the last barrier
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<int> departed_;  // ranks that have left
  UniqueFd stop_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> is_hurried_{false};
  std::thread thread_;
};

}  // namespace rueda
