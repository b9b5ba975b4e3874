#include "membership/rendezvous_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "core/limited_log.h"
#include "core/strings.h"
#include "membership/host.h"
#include "transport/strangers.h"

namespace rueda {

namespace {

using Verb = RendezvousWords::Verb;

constexpr auto parting_timeout = std::chrono::seconds(5);
constexpr auto hurried_parting_timeout = std::chrono::seconds(1);
constexpr auto key_purpose = "rueda rendezvous 2";

LimitedLog& warnings() {
  static LimitedLog log(LogLevel::warning);
  return log;
}

std::vector<Listener> alone(Listener listener) {
  std::vector<Listener> listeners;
  listeners.push_back(std::move(listener));
  return listeners;
}

std::string number(std::uint32_t value) {
  return std::to_string(value);
}

void append(std::vector<std::byte>& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

std::vector<std::byte> RendezvousWords::to_frame() const {
  const std::array<std::uint32_t, 4> head{static_cast<std::uint32_t>(verb), rank, size,
                                          static_cast<std::uint32_t>(key.size())};
  const auto bytes = std::as_bytes(std::span(head));
  std::vector<std::byte> payload(bytes.begin(), bytes.end());
  append(payload, key);
  append(payload, value);
  return frame_of(FrameKind::message, payload);
}

Expected<RendezvousWords> RendezvousWords::parse(std::span<const std::byte> payload) {
  std::array<std::uint32_t, 4> head{};
  const Status foreign(ErrorCode::transport, "received a message that is not of the rendezvous");
  if (payload.size() < sizeof head) return foreign;
  std::memcpy(head.data(), payload.data(), sizeof head);
  const std::string text(reinterpret_cast<const char*>(payload.data()) + sizeof head,
                         payload.size() - sizeof head);
  const auto [verb, rank, size, key_length] = head;
  if (verb > static_cast<std::uint32_t>(Verb::lost) || key_length > text.size()) return foreign;
  return RendezvousWords{static_cast<Verb>(verb), rank, size, text.substr(0, key_length),
                         text.substr(key_length)};
}

void append_text(std::string& texts, std::string_view text) {
  const auto length = static_cast<std::uint32_t>(text.size());
  texts.append(reinterpret_cast<const char*>(&length), sizeof length);
  texts.append(text);
}

Expected<std::vector<std::string>> split_texts(std::string_view texts) {
  std::vector<std::string> parts;
  while (!texts.empty()) {
    std::uint32_t length = 0;
    if (texts.size() >= sizeof length) std::memcpy(&length, texts.data(), sizeof length);
    if (texts.size() < sizeof length || texts.size() - sizeof length < length) {
      return Status(ErrorCode::transport, "the rendezvous sent a truncated text");
    }
    parts.emplace_back(texts.substr(sizeof length, length));
    texts.remove_prefix(sizeof length + length);
  }
  return parts;
}

Key RendezvousHello::key_of(const std::string& secret) {
  return Key(secret).derive({key_purpose});
}
// The proofs differ in their first word, so that neither side can be tricked into making the
// other's.
std::string RendezvousHello::proof_of_store(const Key& key) const {
  return key.proof_text({"store", number(rank), number(size), rank_word, store_word});
}
std::string RendezvousHello::proof_of_rank(const Key& key) const {
  return key.proof_text({"rank", number(rank), number(size), rank_word, store_word});
}

RendezvousStore::RendezvousStore(Listener listener, int size, const std::string& secret)
    : RendezvousStore(alone(std::move(listener)), size, secret) {}

RendezvousStore::RendezvousStore(std::vector<Listener> listeners, int size,
                                 const std::string& secret)
    : listeners_(std::move(listeners)),
      size_(size),
      key_(RendezvousHello::key_of(secret)),
      stop_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_([this] { serve(); }) {}

RendezvousStore::~RendezvousStore() {
  stopping_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void RendezvousStore::serve() {
  while (!stopping_) {
    sleep();
    accept_all();
    take_turns();
  }
  listeners_.clear();
  // There is no need to wait for clients that are not ranks by now.
  std::erase_if(clients_, [](const auto& client) { return client->rank < 0; });
  const Time deadline = Clock::now() + (is_hurried_ ? hurried_parting_timeout : parting_timeout);
  while (!clients_.empty() && Clock::now() < deadline) {
    sleep();
    take_turns();
  }
}

void RendezvousStore::take_turns() {
  const Time now = Clock::now();
  for (const auto& client : clients_) {
    if (client->rank < 0 && now - client->since > handshake_timeout) {
      reject(*client, "said nothing for too long");
    }
    if (client->link.is_open()) listen_to(*client);
  }
  std::erase_if(clients_, [](const auto& client) { return !client->link.is_open(); });
  settle_barrier();
}

// Sleeps until something can be done, or for a moment while parting.
void RendezvousStore::sleep() {
  using std::chrono::milliseconds;
  const Time now = Clock::now();
  // Read once: if told to stop in between, it would sleep forever, without being woken.
  const bool is_stopping = stopping_;
  Time wake = is_stopping ? now + milliseconds(100) : Time::max();
  std::vector<pollfd> entries;
  if (!is_stopping) {
    entries.push_back({stop_.get(), POLLIN, 0});
    if (now >= accept_after_) {
      for (const Listener& listener : listeners_) entries.push_back({listener.fd.get(), POLLIN, 0});
    } else {
      wake = std::min(wake, accept_after_);
    }
  }
  for (const auto& client : clients_) {
    const bool writes = client->link.wants_to_write();
    entries.push_back(
        {client->link.fd(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
    if (client->rank < 0) wake = std::min<Time>(wake, client->since + handshake_timeout);
  }
  int timeout = -1;
  if (wake != Time::max()) {
    timeout = static_cast<int>(
        std::max<long long>(0, std::chrono::ceil<milliseconds>(wake - now).count()));
  }
  ::poll(entries.data(), entries.size(), timeout);
}

void RendezvousStore::accept_all() {
  for (const Listener& listener : listeners_) accept_all_at(listener);
}

// Accepts a limited number at a time, so that ranks get their turn however many arrive.
void RendezvousStore::accept_all_at(const Listener& listener) {
  if (Clock::now() < accept_after_) return;
  for (int count = 0; count < max_accepted_at_once; ++count) {
    Accepted next = accept_from(listener.fd.get());
    if (!next.fd) {
      if (!next.lacks_descriptors) return;
      warnings().write("rendezvous: no file descriptor is left for a connection (ulimit -n)");
      drop_oldest_pending();
      accept_after_ = Clock::now() + accept_back_off;
      return;
    }
    const auto pending = static_cast<std::size_t>(std::count_if(
        clients_.begin(), clients_.end(), [](const auto& client) { return client->rank < 0; }));
    if (pending >= max_strangers + static_cast<std::size_t>(size_)) drop_oldest_pending();
    auto client = std::make_unique<Client>();
    client->link = SocketLink(std::move(next.fd), false);
    client->since = Clock::now();
    clients_.push_back(std::move(client));
  }
}

// Clients are in order of arrival.
void RendezvousStore::drop_oldest_pending() {
  const auto oldest = std::find_if(clients_.begin(), clients_.end(),
                                   [](const auto& client) { return client->rank < 0; });
  if (oldest == clients_.end()) return;
  listen_to(**oldest);  // perhaps it has just sent its proof
  if ((*oldest)->rank >= 0) return;
  reject(**oldest, "had to make room for others");
  clients_.erase(oldest);
}

void RendezvousStore::reject(Client& client, const std::string& why) {
  if (client.link.is_open()) warnings().write("rendezvous: rejected a connection that " + why);
  client.link.drop();
}

void RendezvousStore::listen_to(Client& client) {
  Status status = client.link.wants_to_write() ? client.link.write() : Status();
  constexpr std::size_t max_pending_bytes = frame_header_bytes + max_pending_frame_bytes;
  if (status.ok())
    status = client.rank < 0 ? client.link.read(max_pending_bytes) : client.link.read();
  while (!client.rejected) {
    const bool is_pending = client.rank < 0;
    const auto frame =
        client.link.next_frame(is_pending ? max_pending_frame_bytes : max_frame_bytes);
    if (!frame) status = frame.status();
    if (!frame || !frame.value()) break;
    const auto question = RendezvousWords::parse(frame.value()->payload);
    if (!question) {
      status = question.status();
      break;
    }
    answer(client, question.value());
  }
  if (client.rejected) client.link.drop();
  if (status.ok()) return;
  if (client.rank >= 0) departed_.push_back(client.rank);
  client.link.drop();
}

void RendezvousStore::reply(Client& client, Verb verb, std::string value, std::string key) {
  client.link.enqueue(RendezvousWords{verb, 0, 0, std::move(key), std::move(value)}.to_frame());
  // A broken connection is detected by the next read.
  if (Status status = client.link.write(); !status.ok()) return;
}

// The last answer to a client that is not a rank: it gets one attempt, so answers cannot pile up.
void RendezvousStore::refuse(Client& client, Verb verb, std::string value) {
  client.rejected = true;
  reply(client, verb, std::move(value));
}

void RendezvousStore::answer(Client& client, const RendezvousWords& question) {
  if (client.rank < 0) {
    if (question.verb == Verb::hello) return challenge(client, question);
    if (question.verb == Verb::prove) return admit(client, question);
    return refuse(client, Verb::error, "say hello first");
  }
  switch (question.verb) {
    case Verb::put:
      if (!entries_.emplace(question.key, question.value).second) {
        return reply(client, Verb::error, str("key '", question.key, "' was put twice"));
      }
      append_text(fresh_, question.key);
      append_text(fresh_, question.value);
      return reply(client, Verb::ok);
    case Verb::get: {
      const auto found = entries_.find(question.key);
      if (found != entries_.end()) return reply(client, Verb::ok, found->second);
      return reply(client, Verb::error, str("no rank has put key '", question.key, "'"));
    }
    case Verb::barrier: client.at_barrier = true; return;
    case Verb::missing: return reply(client, Verb::missing, describe_ranks(missing_ranks()));
    default: return reply(client, Verb::error, "not a question");
  }
}

void RendezvousStore::challenge(Client& client, const RendezvousWords& question) {
  RendezvousHello& hello = client.hello;
  if (!hello.store_word.empty()) return refuse(client, Verb::error, "said hello twice");
  if (question.key.size() != rendezvous_word_length) {
    return refuse(client, Verb::error,
                  str("rank ", question.rank,
                      " runs another version of Rueda than rank 0, which is ", RUEDA_VERSION));
  }
  hello = {question.rank, question.size, question.key, random_name()};
  reply(client, Verb::challenge, hello.proof_of_store(key_), hello.store_word);
}

void RendezvousStore::admit(Client& client, const RendezvousWords& question) {
  const RendezvousHello& hello = client.hello;
  if (hello.store_word.empty() || !is_same_secret(question.value, hello.proof_of_rank(key_))) {
    warnings().write("rendezvous: rejected a connection that does not know the job's secret");
    return refuse(client, Verb::error, "the job's secret (RUEDA_SECRET) is another one");
  }
  const int rank = static_cast<int>(hello.rank);
  if (static_cast<int>(hello.size) != size_) {
    const std::string host = peer_host(client.link.fd());
    const std::string told = str("was told that there are ", hello.size, " ranks, rank 0 on ",
                                 host_name(), " that there are ", size_);
    warnings().write(str("rendezvous: rejected rank ", rank, host.empty() ? "" : " at " + host,
                         ", which ", told));
    return refuse(client, Verb::error, str("rank ", rank, " ", told));
  }
  if (rank < 0 || rank >= size_) {
    return refuse(client, Verb::error, str("there is no rank ", rank, " among ", size_));
  }
  const bool is_here = std::any_of(clients_.begin(), clients_.end(),
                                   [&](const auto& other) { return other->rank == rank; });
  // Either two processes were given the same rank, or this one is early for the next world.
  if (is_here || std::count(departed_.begin(), departed_.end(), rank) > 0) {
    return refuse(client, Verb::later);
  }
  client.rank = rank;
  reply(client, Verb::ok);
}

std::vector<int> RendezvousStore::missing_ranks() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    const bool is_there = std::any_of(clients_.begin(), clients_.end(), [&](const auto& client) {
      return client->rank == rank && client->at_barrier && client->link.is_open();
    });
    if (!is_there) missing.push_back(rank);
  }
  return missing;
}

void RendezvousStore::settle_barrier() {
  const bool complete = missing_ranks().empty();
  if (!complete && departed_.empty()) return;
  std::sort(departed_.begin(), departed_.end());
  for (const auto& client : clients_) {
    if (!client->at_barrier) continue;
    client->at_barrier = false;
    if (complete) {
      reply(*client, Verb::ok, fresh_);
    } else {
      reply(*client, Verb::error, describe_ranks(departed_) + " left while the world was formed");
    }
  }
  if (complete) fresh_.clear();
}

}  // namespace rueda
