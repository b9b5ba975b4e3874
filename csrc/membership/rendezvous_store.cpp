#include "membership/rendezvous_store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "core/strings.h"

namespace rueda {

namespace {

using Verb = RendezvousWords::Verb;

constexpr auto parting_patience = std::chrono::seconds(5);

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
  const Status foreign(ErrorCode::transport, "received something that is not of the rendezvous");
  if (payload.size() < sizeof head) return foreign;
  std::memcpy(head.data(), payload.data(), sizeof head);
  const std::string text(reinterpret_cast<const char*>(payload.data()) + sizeof head,
                         payload.size() - sizeof head);
  const auto [verb, rank, size, key_length] = head;
  if (verb > static_cast<std::uint32_t>(Verb::error) || key_length > text.size()) return foreign;
  return RendezvousWords{static_cast<Verb>(verb), rank, size, text.substr(0, key_length),
                         text.substr(key_length)};
}

RendezvousStore::RendezvousStore(Listener listener, int size)
    : listener_(std::move(listener)),
      size_(size),
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
    while (UniqueFd fd = accept_from(listener_.fd.get())) {
      clients_.push_back(std::make_unique<Client>(Client{SocketLink(std::move(fd), false)}));
    }
    for (const auto& client : clients_) listen_to(*client);
    std::erase_if(clients_, [](const auto& client) { return !client->link.is_open(); });
    settle_barrier();
  }
  listener_.fd.reset();
  const Time deadline = Clock::now() + parting_patience;
  while (!clients_.empty() && Clock::now() < deadline) {
    sleep();
    for (const auto& client : clients_) listen_to(*client);
    std::erase_if(clients_, [](const auto& client) { return !client->link.is_open(); });
    settle_barrier();
  }
}

// Until something can be done, or a moment has passed while parting.
void RendezvousStore::sleep() {
  std::vector<pollfd> entries;
  if (!stopping_) {
    entries.push_back({listener_.fd.get(), POLLIN, 0});
    entries.push_back({stop_.get(), POLLIN, 0});
  }
  for (const auto& client : clients_) {
    const bool writes = client->link.wants_to_write();
    entries.push_back(
        {client->link.fd(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  }
  ::poll(entries.data(), entries.size(), stopping_ ? 100 : -1);
}

void RendezvousStore::listen_to(Client& client) {
  Status status = client.link.wants_to_write() ? client.link.write() : Status();
  if (status) status = client.link.read();
  while (true) {
    const auto frame = client.link.next_frame();
    if (!frame) status = frame.status();
    if (!frame || !frame.value()) break;
    const auto question = RendezvousWords::parse(frame.value()->payload);
    if (!question) {
      status = question.status();
      break;
    }
    answer(client, question.value());
  }
  if (status) return;
  client.link.drop();
  if (client.rank >= 0) departed_.push_back(client.rank);
}

void RendezvousStore::reply(Client& client, Verb verb, std::string value) {
  client.link.enqueue(RendezvousWords{verb, 0, 0, {}, std::move(value)}.to_frame());
  // A broken connection is found when it is read next.
  if (Status status = client.link.write(); !status) return;
}

void RendezvousStore::answer(Client& client, const RendezvousWords& question) {
  if (question.verb == Verb::hello) return greet(client, question);
  if (client.rank < 0) return reply(client, Verb::error, "say hello first");
  switch (question.verb) {
    case Verb::put:
      if (entries_.emplace(question.key, question.value).second) return reply(client, Verb::ok);
      return reply(client, Verb::error, str("key '", question.key, "' was put twice"));
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

void RendezvousStore::greet(Client& client, const RendezvousWords& question) {
  const int rank = static_cast<int>(question.rank);
  if (static_cast<int>(question.size) != size_) {
    return reply(client, Verb::error,
                 str("rank ", rank, " was told that there are ", question.size,
                     " ranks, rank 0 that there are ", size_));
  }
  if (rank < 0 || rank >= size_) {
    return reply(client, Verb::error, str("there is no rank ", rank, " among ", size_));
  }
  const bool is_here = std::any_of(clients_.begin(), clients_.end(),
                                   [&](const auto& other) { return other->rank == rank; });
  // Either two processes were told the same rank, or this one is ahead and wants the next world.
  if (is_here || std::count(departed_.begin(), departed_.end(), rank) > 0) {
    return reply(client, Verb::later);
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
      reply(*client, Verb::ok);
    } else {
      reply(*client, Verb::error, describe_ranks(departed_) + " left while the world was formed");
    }
  }
}

}  // namespace rueda
