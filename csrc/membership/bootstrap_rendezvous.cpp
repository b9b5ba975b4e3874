#include "membership/bootstrap_rendezvous.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "core/interruption.h"
#include "core/start_thread.h"
#include "core/strings.h"
#include "core/wait_fd.h"
#include "membership/host.h"
#include "membership/inherited_listener.h"
#include "membership/rendezvous_store.h"
#include "membership/starter.h"

namespace rueda {

namespace {

using Verb = RendezvousWords::Verb;

constexpr std::size_t max_read_bytes = 1 << 20;
constexpr auto between_tries = std::chrono::milliseconds(20);
// For questions that the store answers immediately.
constexpr auto answer_timeout = std::chrono::seconds(30);
// For one attempt to be admitted: whatever listens there may not be ours, and stay silent.
constexpr auto attempt_timeout = std::chrono::seconds(10);
// The same if there are other addresses to try, and the longest pause between rounds over them.
constexpr auto short_attempt_timeout = std::chrono::seconds(2);
constexpr auto max_between_rounds = std::chrono::milliseconds(500);

Status failed(std::string text) {
  return Status(ErrorCode::initialization, std::move(text));
}

class RendezvousBootstrap final : public Bootstrap {
 public:
  RendezvousBootstrap(SocketLink link, int rank, int size, std::string secret)
      : link_(std::move(link)),
        rank_(rank),
        size_(size),
        secret_(std::move(secret)),
        key_(RendezvousHello::key_of(secret_)),
        hello_{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size), {}, {}} {}
  ~RendezvousBootstrap() override {
    if (store_ && !is_answered_) store_->hurry();
  }

  std::string_view name() const override { return "rendezvous"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string secret() const override { return secret_; }

  Status put(const std::string& key, const std::string& value) override {
    return ask({Verb::put, 0, 0, key, value}, Clock::now() + answer_timeout).status();
  }

  Expected<std::string> get(const std::string& key) override {
    const auto known = known_.find(key);
    if (known != known_.end()) return known->second;
    auto answer = ask({Verb::get, 0, 0, key, {}}, Clock::now() + answer_timeout);
    if (!answer) return answer.status();
    return std::move(answer->value);
  }

  Status barrier(Time deadline) override {
    const auto passed = ask({Verb::barrier, 0, 0, {}, {}}, deadline);
    if (passed) return learn(passed.value());
    if (passed.status().code() != ErrorCode::timeout) return passed.status();
    const auto missing = ask({Verb::missing, 0, 0, {}, {}}, Clock::now() + std::chrono::seconds(2));
    if (!missing)
      return failed("the barrier was not passed before the deadline").because(missing.status());
    if (missing.value().verb == Verb::ok) {  // it was completed just now
      const auto answer = next_answer(Clock::now() + answer_timeout);
      return answer ? learn(missing.value()) : answer.status();
    }
    link_.drop();  // the others must no longer rely on this rank's answers
    is_answered_ = false;
    return failed(str("waited for ", missing.value().value, " until the deadline"));
  }

  // ErrorCode::timeout if there is no answer by the deadline, ErrorCode::transport if the
  // connection broke, ErrorCode::initialization if the answer is no.
  Expected<RendezvousWords> ask(const RendezvousWords& question, Time deadline) {
    if (!link_.is_open()) return lost(Status(ErrorCode::transport, "the connection is closed"));
    link_.enqueue(question.to_frame());
    is_answered_ = false;
    auto answer = next_answer(deadline);
    is_answered_ = answer.ok();
    return answer;
  }

  // Checks that the answer comes from a store that knows the secret; if not,
  // ErrorCode::initialization.
  Status greet(Time deadline);
  // Call after greet(). ErrorCode::initialization if another attempt would be futile.
  Status enter(Time deadline);

  void keep(std::unique_ptr<RendezvousStore> store) { store_ = std::move(store); }
  void is_served_by(std::string_view server) { server_ = server; }

 private:
  [[nodiscard]] Status lost(const Status& cause) const {
    return Status(ErrorCode::transport,
                  server_ + ", which serves the rendezvous, cannot be reached")
        .because(cause);
  }

  [[nodiscard]] std::string own_name() const { return str("rank ", rank_, " on ", host_name()); }

  // Stores what all ranks put before the barrier that `answer` ends.
  Status learn(const RendezvousWords& answer) {
    auto texts = split_texts(answer.value);
    if (!texts) return texts.status();
    for (std::size_t i = 0; i + 1 < texts->size(); i += 2) {
      known_.emplace(std::move((*texts)[i]), std::move((*texts)[i + 1]));
    }
    return {};
  }

  Expected<RendezvousWords> next_answer(Time deadline) {
    Status broken;
    while (true) {
      const auto frame = link_.next_frame(is_in_ ? max_frame_bytes : max_pending_frame_bytes);
      if (!frame) return lost(frame.status());
      if (frame.value()) return understand(frame.value()->payload);
      if (!broken.ok()) return lost(broken);
      if (Clock::now() >= deadline)
        return Status(ErrorCode::timeout, "no answer from the rendezvous");
      if (link_.wants_to_write()) {
        broken = link_.write();
        if (link_.wants_to_write()) wait_writable(link_.fd(), deadline);
      } else if (wait_readable(link_.fd(), deadline)) {
        broken = link_.read(is_in_ ? max_read_bytes : frame_header_bytes + max_pending_frame_bytes);
      }
    }
  }

  static Expected<RendezvousWords> understand(std::span<const std::byte> payload) {
    auto answer = RendezvousWords::parse(payload);
    if (answer && answer->verb == Verb::error) return failed(answer->value);
    if (answer && answer->verb == Verb::lost) {
      return Status(ErrorCode::initialization, answer->value, static_cast<int>(answer->rank));
    }
    return answer;
  }

  // Declared first, destroyed last: the store waits for this rank, too, to leave.
  std::unique_ptr<RendezvousStore> store_;
  SocketLink link_;
  const int rank_;
  const int size_;
  const std::string secret_;
  const Key key_;
  RendezvousHello hello_;
  std::string server_ = "rank 0";
  std::map<std::string, std::string> known_;  // what was put before the last barrier
  bool is_in_ = false;                        // both sides have proved that they know the secret
  bool is_answered_ = true;                   // the last question, and not by an error
};

Status RendezvousBootstrap::greet(Time deadline) {
  hello_.rank_word = random_name();
  const auto challenge =
      ask({Verb::hello, hello_.rank, hello_.size, hello_.rank_word, {}}, deadline);
  if (!challenge) return challenge.status();
  if (challenge.value().verb != Verb::challenge) {
    return failed(server_ + " runs another version of Rueda");
  }
  hello_.store_word = challenge.value().key;
  if (is_same_secret(challenge.value().value, hello_.proof_of_store(key_))) return {};
  return failed(
      str("the server there has another secret (RUEDA_SECRET) than ", own_name(),
          ": it belongs to another job, or this job's ranks did not all get the same secret"));
}

Status RendezvousBootstrap::enter(Time deadline) {
  const auto answer = ask({Verb::prove, 0, 0, {}, hello_.proof_of_rank(key_)}, deadline);
  if (!answer && answer.status().code() == ErrorCode::initialization) {
    return failed(own_name() + " was rejected").because(answer.status());
  }
  if (!answer) return answer.status();
  is_in_ = answer.value().verb == Verb::ok;
  if (is_in_) return {};
  return Status(ErrorCode::timeout, str("another process is rank ", rank_,
                                        " there, or a rank has not left the previous world yet"));
}

// The addresses behind `address` that belong to this host. A name may resolve to none of them on
// the very host that it names: to a loopback, as Debian's do, or to a gateway's address. The other
// ranks may then reach this host at any address, so rank 0 listens everywhere.
std::vector<std::string> addresses_to_serve(const std::string& address) {
  const auto colon = address.rfind(':');
  if (!address.starts_with("tcp:") || colon <= 4) return {address};
  const std::string host = address.substr(4, colon - 4);
  in_addr numeric{};
  if (host.starts_with('[') || host == "localhost" ||
      ::inet_pton(AF_INET, host.c_str(), &numeric) == 1) {
    return {address};
  }
  std::vector<std::string> own = own_addresses_of(address);
  if (own.empty()) own.push_back("tcp:" + address.substr(colon));
  return own;
}

Expected<std::vector<Listener>> listen_to_serve(const std::string& address) {
  std::vector<Listener> listeners;
  for (const std::string& each : addresses_to_serve(address)) {
    auto listener = listen_on(each);
    if (!listener) return listener.status();
    listeners.push_back(std::move(listener).value());
  }
  return listeners;
}

// `where`: a listener, or several.
template <typename Where>
Expected<std::unique_ptr<RendezvousStore>> store_at(Where where, int size,
                                                    const std::string& secret) {
  try {
    return std::make_unique<RendezvousStore>(std::move(where), size, secret);
  } catch (const std::system_error& error) {
    return no_thread(error);
  }
}

Expected<std::unique_ptr<RendezvousStore>> serve(const std::string& address, int size,
                                                 const std::string& secret, Time deadline,
                                                 int descriptor) {
  if (auto inherited = inherited_listener(descriptor, address)) {
    return store_at(*std::move(inherited), size, secret);
  }
  while (true) {
    auto listeners = listen_to_serve(address);
    if (listeners) return store_at(std::move(listeners).value(), size, secret);
    if (Clock::now() >= deadline) {
      return failed("the rendezvous cannot be served").because(listeners.status());
    }
    std::this_thread::sleep_for(between_tries);
    look_for_interruption();
  }
}

Expected<SocketLink> try_to_connect_to_one(const std::string& address, Time deadline) {
  auto fd = start_connecting(address);
  if (!fd) return fd.status();
  if (!becomes_writable(fd->get(), deadline)) {
    return Status(ErrorCode::timeout, "no connection before the deadline");
  }
  if (Status status = finish_connecting(fd->get()); !status.ok()) return status;
  return SocketLink(std::move(fd).value(), false);
}

// The server may not be reachable at every address of a name.
Expected<SocketLink> try_to_connect(const std::string& address, Time deadline) {
  const std::vector<std::string> addresses = addresses_of(address);
  for (std::size_t i = 0; i + 1 < addresses.size(); ++i) {
    const Time now = Clock::now();
    const auto share = (deadline - now) / static_cast<int>(addresses.size() - i);
    auto link = try_to_connect_to_one(addresses[i], now + share);
    if (link) return link;
  }
  return try_to_connect_to_one(addresses.back(), deadline);
}

// Connects to whatever listens there; its identity is not verified yet.
Expected<std::unique_ptr<RendezvousBootstrap>> reach(const std::string& address, int rank, int size,
                                                     const std::string& secret, Time deadline) {
  auto link = try_to_connect(address, deadline);
  if (!link) return link.status();
  return std::make_unique<RendezvousBootstrap>(std::move(link).value(), rank, size, secret);
}

// One attempt. ErrorCode::initialization if another would be futile.
Expected<std::unique_ptr<RendezvousBootstrap>> try_to_enter(const std::string& address, int rank,
                                                            int size, const std::string& secret,
                                                            Time deadline,
                                                            std::string_view server) {
  deadline = std::min<Time>(deadline, Clock::now() + attempt_timeout);
  auto entered = reach(address, rank, size, secret, deadline);
  if (!entered) return entered.status();
  entered.value()->is_served_by(server);
  if (Status status = entered.value()->greet(deadline); !status.ok()) return status;
  if (Status status = entered.value()->enter(deadline); !status.ok()) return status;
  return entered;
}

// Why a rank is not admitted at any of several addresses; keeps the most informative reason.
struct Obstacle {
  Status status{ErrorCode::timeout, "no answer"};
  bool is_answer = false;  // something answered

  // Ignores attempts that the deadline cut short.
  void note(Status found, bool answered, Time deadline) {
    if (Clock::now() >= deadline || (is_answer && !answered)) return;
    status = std::move(found);
    is_answer = answered;
  }
};

// The same for one of several addresses: a server of another job is an obstacle, not an error.
// ErrorCode::timeout if it used up all the time.
Expected<std::unique_ptr<RendezvousBootstrap>> try_to_enter_one(const std::string& address,
                                                                int rank, int size,
                                                                const std::string& secret,
                                                                Time deadline, Obstacle& obstacle) {
  const Time until = std::min<Time>(deadline, Clock::now() + short_attempt_timeout);
  auto entered = reach(address, rank, size, secret, until);
  Status status = entered ? entered.value()->greet(until) : entered.status();
  if (!status.ok()) {
    obstacle.note(Status(ErrorCode::transport, address).because(status), entered.ok(), deadline);
    const bool said_nothing = status.code() == ErrorCode::timeout;
    return Status(said_nothing ? ErrorCode::timeout : ErrorCode::transport, "not of this job");
  }
  // A client that gives up between proof and answer may already count as a rank that has left.
  status = entered.value()->enter(deadline);
  if (status.ok()) return entered;
  obstacle.note(status, true, deadline);
  return status;
}

// Tries until the deadline.
Expected<std::unique_ptr<RendezvousBootstrap>> enter_until(const std::string& address, int rank,
                                                           int size, const std::string& secret,
                                                           Time deadline, std::string_view server) {
  Status obstacle(ErrorCode::timeout, "no answer");
  while (true) {
    auto entered = try_to_enter(address, rank, size, secret, deadline, server);
    if (entered || entered.status().code() == ErrorCode::initialization) return entered;
    if (Clock::now() >= deadline) break;
    obstacle = entered.status();  // not the last attempt's, which the deadline cut short
    std::this_thread::sleep_for(between_tries);
    look_for_interruption();
  }
  return failed(str("rank ", rank, " could not join the rendezvous at ", address, ", served by ",
                    server, ", before the deadline"))
      .because(obstacle);
}

Status check_meeting(const std::string& address, int rank, int size, const std::string& secret) {
  if (rank < 0 || rank >= size) return failed(str("there is no rank ", rank, " among ", size));
  if (!address.starts_with("unix:@") && !address.starts_with("tcp:")) {
    return failed(
        str("'", address, "' is not a rendezvous address: give unix:@name or tcp:host:port"));
  }
  if (address.starts_with("tcp:") && secret.size() < min_secret_length) {
    return failed(str(
        "a rendezvous over TCP needs RUEDA_SECRET, a random text of at least ", min_secret_length,
        " characters that is the same on all ranks, such as from openssl rand -hex 32"));
  }
  return {};
}

struct Served {
  std::unique_ptr<RendezvousStore> store;
  std::string address;
};

Expected<Served> serve_at_first_free(const std::vector<std::string>& addresses, int size,
                                     const std::string& secret) {
  Status obstacle;
  for (const std::string& address : addresses) {
    auto listeners = listen_to_serve(address);
    if (listeners) {
      auto store = store_at(std::move(listeners).value(), size, secret);
      if (!store) return store.status();
      return Served{std::move(store).value(), address};
    }
    obstacle = listeners.status();
    const Time deadline = Clock::now() + short_attempt_timeout;
    auto other = reach(address, 0, size, secret, deadline);
    if (other && other.value()->greet(deadline).ok()) {
      return failed(str("another process is rank 0 of this very job at ", address,
                        ": a process was started twice, or two jobs have the same secret, port and "
                        "name"));
    }
  }
  return failed(str("rank 0 cannot serve the rendezvous on any of ", addresses.size(), " ports"))
      .because(obstacle);
}

}  // namespace

Expected<std::unique_ptr<Bootstrap>> connect_rendezvous(const std::string& address, int rank,
                                                        int size, Time deadline,
                                                        const std::string& secret, int listener) {
  if (Status status = check_meeting(address, rank, size, secret); !status.ok()) return status;
  std::unique_ptr<RendezvousStore> store;
  if (rank == 0) {
    auto served = serve(address, size, secret, deadline, listener);
    if (!served) return served.status();
    store = std::move(served).value();
  }
  auto entered = enter_until(address, rank, size, secret, deadline, "rank 0");
  if (!entered) return entered.status();
  entered.value()->keep(std::move(store));
  return std::unique_ptr<Bootstrap>(std::move(entered).value());
}

Expected<std::unique_ptr<Bootstrap>> enter_rendezvous(const std::string& address, int rank,
                                                      int size, Time deadline,
                                                      const std::string& secret) {
  if (Status status = check_meeting(address, rank, size, secret); !status.ok()) return status;
  auto entered = enter_until(address, rank, size, secret, deadline, "the launcher");
  if (!entered) return entered.status();
  return std::unique_ptr<Bootstrap>(std::move(entered).value());
}

Expected<std::unique_ptr<Bootstrap>> connect_at_first_free(
    const std::vector<std::string>& addresses, int rank, int size, Time deadline,
    const std::string& secret, bool ends_with_agent) {
  const auto is_over = [&] { return ends_with_agent && has_lost_agent(); };
  const auto over = [&] {
    return failed(str("the agent that started rank ", rank,
                      " ended before the rank found rank 0: this attempt is over"));
  };
  if (is_over()) return over();
  std::unique_ptr<RendezvousStore> store;
  std::vector<std::string> candidates = addresses;
  if (rank == 0) {
    auto served = serve_at_first_free(addresses, size, secret);
    if (!served) return served.status();
    store = std::move(served->store);
    candidates = {served->address};
  }
  Obstacle obstacle;
  Duration pause = between_tries;
  while (true) {
    std::vector<std::string> slow;  // tried last from now on
    for (const std::string& address : candidates) {
      auto entered = try_to_enter_one(address, rank, size, secret, deadline, obstacle);
      if (entered) {
        entered.value()->keep(std::move(store));
        return std::unique_ptr<Bootstrap>(std::move(entered).value());
      }
      if (entered.status().code() == ErrorCode::initialization) return entered.status();
      if (entered.status().code() == ErrorCode::timeout) slow.push_back(address);
      look_for_interruption();
      if (is_over()) return over();
      if (Clock::now() >= deadline) break;
    }
    if (Clock::now() >= deadline) break;
    std::stable_partition(candidates.begin(), candidates.end(), [&](const std::string& address) {
      return std::ranges::find(slow, address) == slow.end();
    });
    std::this_thread::sleep_for(pause);
    pause = std::min<Duration>(2 * pause, max_between_rounds);
  }
  return failed(str("rank ", rank, " did not find rank 0 on any of ", addresses.size(), " ports (",
                    addresses.front(), ", ...) before the deadline"))
      .because(obstacle.status);
}

}  // namespace rueda
