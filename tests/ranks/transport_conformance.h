// Conformance tests of transports, as functions that each rank calls with its own transport. They
// throw at the first violation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/watcher.h"
#include "core/strings.h"
#include "core/wait_fd.h"
#include "effort.h"
#include "onehost/wake.h"
#include "ranks/rank_threads.h"
#include "transport/transport.h"

namespace rueda::test {

class ConformanceRank {
 public:
  Transport& transport;
  std::function<void()> barrier;  // of all ranks; throws if it fails

  // `word`: the word on which the rank sleeps, if the transport wakes one.
  ConformanceRank(Transport& tested, std::function<void()> all_meet, WakeWord* word = nullptr)
      : transport(tested),
        barrier(std::move(all_meet)),
        word_(word != nullptr ? *word : own_word_) {
    if (transport.wait_fd() < 0) return;
    expect_ok(watcher_.start(transport.wait_fd(), -1, [this] { wake(word_); }), "watching");
  }

  [[nodiscard]] int rank() const { return transport.rank(); }
  [[nodiscard]] int size() const { return transport.size(); }

  // Waits for the transfer, sleeping like the engine.
  Status wait(const Ticket& ticket) {
    const Time deadline = soon();
    while (!ticket->done) {
      if (transport.progress()) continue;
      if (Clock::now() >= deadline) {
        return Status(ErrorCode::timeout, str("a transfer with rank ", ticket->peer), ticket->peer);
      }
      if (transport.requires_polling()) {
        std::this_thread::yield();
      } else {
        sleep(deadline);
      }
    }
    return ticket->status;
  }

 private:
  void sleep(Time deadline) {
    if (watcher_.has_seen()) watcher_.rearm();
    Sleeper sleeper(word_);
    if (transport.progress() || watcher_.has_seen() || !transport.arm()) return;
    (void)sleeper.sleep(deadline);
    transport.disarm();
  }

  WakeWord own_word_{};
  WakeWord& word_;
  Watcher watcher_;
};

// Waits for the transfer by polling progress(), without any wake-up.
inline Status wait_for(Transport& transport, const Ticket& ticket) {
  await([&] { return static_cast<void>(transport.progress()), ticket->done; },
        str("a transfer with rank ", ticket->peer, " ends"));
  return ticket->status;
}

struct ConformanceCase {
  const char* name;
  void (*run)(ConformanceRank&);
  bool ends_transport = false;  // run it last, or on a separate transport
};

using Bytes = std::vector<std::byte>;

inline Bytes pattern(std::size_t size, std::uint32_t seed) {
  Bytes bytes(size);
  std::uint64_t state = seed * 6364136223846793005ULL + 1442695040888963407ULL;
  for (std::size_t at = 0; at < size; at += sizeof state) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const std::uint64_t word = state ^ (state >> 32);
    std::memcpy(&bytes[at], &word, std::min(sizeof word, size - at));
  }
  return bytes;
}

// Like ==, but with memcmp, since ThreadSanitizer checks each byte that == reads.
inline bool same(const Bytes& left, const Bytes& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

// Tags that differ in some field for different numbers.
inline Tag tag_of(unsigned number) {
  return {.group = static_cast<std::int32_t>(number & 1),
          .stream = number >> 1 & 1,
          .sequence = number >> 3,
          .part = number >> 2 & 1};
}

inline Ticket send(ConformanceRank& self, int peer, unsigned tag, const Bytes& bytes) {
  return self.transport.send(peer, tag_of(tag), std::array{ConstBytes(bytes)});
}
inline Ticket receive(ConformanceRank& self, int peer, unsigned tag, Bytes& bytes) {
  return self.transport.recv(peer, tag_of(tag), std::array{MutableBytes(bytes)});
}
inline void finish_all(ConformanceRank& self, const std::vector<Ticket>& tickets) {
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    expect_ok(self.wait(tickets[i]), str("ticket ", i));
  }
}

inline const std::vector<std::size_t>& conformance_sizes() {
  static const std::vector<std::size_t> sizes{
      0, 1, 7, 4096, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, effort(3 << 20, 1 << 20)};
  return sizes;
}

inline void ring_of_sizes(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  for (const std::size_t size : conformance_sizes()) {
    const Bytes sent = pattern(size, static_cast<std::uint32_t>(self.rank()));
    Bytes received(size);
    finish_all(self, {receive(self, left, 1, received), send(self, right, 1, sent)});
    expect(same(received, pattern(size, static_cast<std::uint32_t>(left))), str("bytes of ", size));
  }
}

inline void vectored(ConformanceRank& self) {
  const int peer = self.size() - 1 - self.rank();
  const Bytes sent = pattern(300'000, static_cast<std::uint32_t>(self.rank()));
  Bytes received(300'000);
  const ConstBytes from(sent);
  const MutableBytes into(received);
  const std::array sources{from.subspan(0, 0), from.subspan(0, 3), from.subspan(3, 0),
                           from.subspan(3, 270'000), from.subspan(270'003)};
  const std::array targets{into.subspan(0, 100'001), into.subspan(0, 0),
                           into.subspan(100'001, 199'998), into.subspan(299'999)};
  finish_all(self, {self.transport.send(peer, tag_of(9), sources),
                    self.transport.recv(peer, tag_of(9), targets)});
  expect(same(received, pattern(300'000, static_cast<std::uint32_t>(peer))), "bytes of many spans");

  const Ticket nothing_in = self.transport.recv(peer, tag_of(9), {});
  finish_all(self, {self.transport.send(peer, tag_of(9), {}), nothing_in});
}

inline void to_itself(ConformanceRank& self) {
  for (const std::size_t size : conformance_sizes()) {
    const Bytes sent = pattern(size, 5);
    Bytes received(size);
    const Ticket out = send(self, self.rank(), 3, sent);
    finish_all(self, {receive(self, self.rank(), 3, received), out});
    expect(same(received, sent), str("bytes of ", size, " to itself"));
  }
}

// The message of the last tag is received first; the messages exceed a ring's capacity.
inline void tags_out_of_order(ConformanceRank& self) {
  constexpr unsigned tags = 20;
  const int peer = self.size() - 1 - self.rank();
  std::vector<Bytes> sent;
  std::vector<Bytes> received(tags, Bytes(100'000));
  std::vector<Ticket> sends;
  for (unsigned tag = 0; tag < tags; ++tag) sent.push_back(pattern(100'000, tag));
  for (unsigned tag = 0; tag < tags; ++tag) sends.push_back(send(self, peer, tag, sent[tag]));
  for (unsigned tag = tags; tag-- > 0;) {
    finish_all(self, {receive(self, peer, tag, received[tag])});
    expect(same(received[tag], sent[tag]), str("bytes of tag ", tag));
  }
  finish_all(self, sends);
}

inline void early_and_late_receives(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  const Bytes sent = pattern(5000, 1);
  Bytes early(5000);
  Bytes late(5000);
  const Ticket first = receive(self, left, 1, early);
  self.barrier();
  std::vector<Ticket> sends{send(self, right, 1, sent), send(self, right, 2, sent)};
  finish_all(self, {first, sends.front()});
  self.barrier();  // now each rank has sent its second message
  self.transport.progress();
  sends.push_back(receive(self, left, 2, late));
  finish_all(self, sends);
  expect(same(early, sent) && same(late, sent), "bytes of early and late receives");
}

// Every rank exchanges several messages per tag with every rank, itself included, and each starts
// them in a different order.
inline void all_to_all(ConformanceRank& self) {
  struct Operation {
    bool sends;
    int peer;
    unsigned tag;
  };
  constexpr unsigned tags = 3;
  constexpr int repetitions = 4;
  const auto content = [](int from, int to, unsigned tag, int index) {
    const auto seed =
        static_cast<std::uint32_t>(((from * 31 + to) * 31 + static_cast<int>(tag)) * 31 + index);
    return pattern((seed * 7919U) % 60'000U, seed);
  };
  std::vector<Operation> operations;
  for (int peer = 0; peer < self.size(); ++peer) {
    for (unsigned tag = 0; tag < tags; ++tag) {
      for (int i = 0; i < 2 * repetitions; ++i) operations.push_back({i % 2 == 0, peer, tag});
    }
  }
  std::mt19937 random(static_cast<std::uint32_t>(1000 + self.rank()));
  std::shuffle(operations.begin(), operations.end(), random);

  std::map<std::pair<int, unsigned>, int> sent_count;
  std::map<std::pair<int, unsigned>, int> received_count;
  std::vector<Ticket> tickets;
  std::vector<Bytes> buffers(operations.size());
  std::vector<Bytes> expected(operations.size());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto [sends, peer, tag] = operations[i];
    if (sends) {
      buffers[i] = content(self.rank(), peer, tag, sent_count[{peer, tag}]++);
      expected[i] = buffers[i];
      tickets.push_back(send(self, peer, tag, buffers[i]));
    } else {
      expected[i] = content(peer, self.rank(), tag, received_count[{peer, tag}]++);
      buffers[i].resize(expected[i].size());
      tickets.push_back(receive(self, peer, tag, buffers[i]));
    }
    if (random() % 4 == 0) self.transport.progress();
  }
  finish_all(self, tickets);
  expect(std::equal(buffers.begin(), buffers.end(), expected.begin(), same),
         "bytes of an exchange of all with all");
}

inline void wrong_length(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  for (const std::size_t sent_size : {std::size_t{24}, std::size_t{0}, std::size_t{400'000}}) {
    const Bytes sent = pattern(sent_size, 1);
    Bytes received(32);
    const Ticket in = receive(self, left, 4, received);
    const Ticket out = send(self, right, 4, sent);
    const Status status = self.wait(in);
    expect(status.code() == ErrorCode::transport, "a wrong length fails: " + status.to_string());
    expect(status.peer() == left, "the error names the peer");
    for (const std::string& part : {str("rank ", left), str(sent_size, " "), str(32)}) {
      expect(status.to_string().find(part) != std::string::npos,
             "'" + part + "' is in: " + status.to_string());
    }
    // Later messages are not affected.
    const Bytes next = pattern(32, 2);
    finish_all(self, {receive(self, left, 4, received), send(self, right, 4, next), out});
    expect(same(received, next), "bytes after a wrong length");
    self.barrier();
  }
}

// Sleeps for each message. A lost wake-up shows as a missed deadline.
inline void sleeping_ping_pong(ConformanceRank& self) {
  const int peer = self.size() - 1 - self.rank();
  if (peer == self.rank()) return;
  for (std::uint32_t round = 0; round < effort(2000U, 500U); ++round) {
    const Bytes sent = pattern(round % 50, round);
    Bytes received(sent.size());
    if (self.rank() < peer) finish_all(self, {send(self, peer, 6, sent)});
    finish_all(self, {receive(self, peer, 6, received)});
    if (self.rank() > peer) finish_all(self, {send(self, peer, 6, sent)});
    expect(same(received, sent), str("bytes of round ", round));
  }
}

// A sender that sleeps on a full ring must be woken when its slow peer has made room.
inline void sleeping_on_a_full_ring(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  const Bytes sent = pattern(3 << 20, 8);
  Bytes received(sent.size());
  for (int round = 0; round < effort(5, 3); ++round) {
    const bool sends_first = self.rank() % 2 == 0;
    if (sends_first && left != self.rank()) {
      finish_all(self, {send(self, right, 2, sent)});
      finish_all(self, {receive(self, left, 2, received)});
    } else {
      std::fill(received.begin(), received.end(), std::byte{0});
      const Ticket in = receive(self, left, 2, received);
      const Ticket out = send(self, right, 2, sent);
      finish_all(self, {in, out});
    }
    expect(same(received, sent), str("bytes of round ", round));
  }
}

// Sends do not complete without limit while the receiver takes nothing.
inline void a_receiver_that_does_not_receive(ConformanceRank& self) {
  constexpr std::size_t message = 1 << 20;
  constexpr std::size_t messages = effort(64, 20);
  constexpr std::size_t on_the_way = 8 << 20;
  const int peer = self.rank() ^ 1;
  const bool takes_part = peer < self.size();
  const bool sends = takes_part && self.rank() < peer;
  const Bytes sent = pattern(message, 3);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; sends && i < messages; ++i) {
    tickets.push_back(send(self, peer, 1, sent));
    for (int count = 0; count < 20; ++count) self.transport.progress();
  }
  const auto done = std::count_if(tickets.begin(), tickets.end(),
                                  [](const Ticket& ticket) { return ticket->done; });
  expect(static_cast<std::size_t>(done) * message <= on_the_way,
         str(done, " messages have left their sender, and nobody has taken any"));
  self.barrier();
  Bytes received(message);
  for (std::size_t i = 0; takes_part && !sends && i < messages; ++i) {
    std::fill(received.begin(), received.end(), std::byte{0});
    finish_all(self, {receive(self, peer, 1, received)});
    expect(same(received, sent), str("bytes of message ", i));
  }
  finish_all(self, tickets);
}

inline void quiet_when_idle(ConformanceRank& self) {
  ring_of_sizes(self);
  self.barrier();
  // A peer may still have to acknowledge received messages.
  const auto is_quiet = [&] {
    while (self.transport.progress()) {
    }
    if (!self.transport.arm()) return false;
    const int fd = self.transport.wait_fd();
    const bool quiet = fd < 0 || !wait_readable(fd, Clock::now());
    self.transport.disarm();
    return quiet;
  };
  await(is_quiet, "an idle transport can be slept upon, and its descriptor is quiet");
  expect(!self.transport.requires_polling(), "an idle transport need not be polled");
  self.barrier();
}

// The first and the last rank lose each other; all other pairs continue.
inline void failure_of_a_peer(ConformanceRank& self) {
  const int last = self.size() - 1;
  const bool loses = self.rank() == 0 || self.rank() == last;
  const int lost = last - self.rank();
  const Bytes sent = pattern(3 << 20, 1);
  Bytes received(3 << 20);
  std::vector<Ticket> ended;
  if (loses) {
    ended = {receive(self, lost, 1, received), receive(self, lost, 2, received),
             send(self, lost, 2, sent)};
    self.transport.progress();
  }
  self.barrier();
  self.transport.progress();
  if (loses) {
    self.transport.fail(lost, Status(ErrorCode::peer_lost, "told to", lost));
    self.transport.fail(lost, Status(ErrorCode::internal, "another reason"));
    ended.push_back(send(self, lost, 3, sent));
    ended.push_back(receive(self, lost, 3, received));
  }
  for (const Ticket& ticket : ended) expect(ticket->done, "nothing with the lost peer goes on");
  for (const std::size_t index : {std::size_t{0}, std::size_t{3}, std::size_t{4}}) {
    expect(!loses || ended[index]->status.message() == "told to", "the first reason is told");
  }
  expect(!self.transport.requires_polling(), "nothing with the lost peer is polled for");
  const Bytes before = received;
  self.barrier();
  std::vector<Bytes> heard(static_cast<std::size_t>(self.size()), Bytes(sent.size()));
  std::vector<Ticket> tickets;
  for (int peer = 0; peer < self.size(); ++peer) {
    if (loses && peer == lost) continue;
    tickets.push_back(send(self, peer, 2, sent));
    tickets.push_back(receive(self, peer, 2, heard[static_cast<std::size_t>(peer)]));
  }
  finish_all(self, tickets);
  for (int peer = 0; peer < self.size(); ++peer) {
    const bool is_lost = loses && peer == lost;
    expect(is_lost || same(heard[static_cast<std::size_t>(peer)], sent),
           str("bytes from rank ", peer));
  }
  expect(same(received, before), "no buffer of the lost peer is touched");
  self.barrier();
}

inline void aborting(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  Bytes received(3 << 20);
  const Bytes sent = pattern(3 << 20, 1);
  const Ticket never = receive(self, left, 1, received);
  const Ticket streaming_out = send(self, right, 2, sent);
  const Ticket streaming_in = receive(self, left, 2, received);
  self.transport.progress();
  self.barrier();
  self.transport.progress();
  const Status reason(ErrorCode::peer_lost, "told to", 0);
  self.transport.abort(reason);
  expect(never->done && streaming_out->done && streaming_in->done, "abort completes everything");
  expect(never->status.code() == ErrorCode::peer_lost, "with the reason");
  self.transport.abort(Status(ErrorCode::internal, "another reason"));
  for (const Ticket& later : {send(self, right, 3, sent), receive(self, left, 3, received)}) {
    expect(later->done && later->status.message() == "told to",
           "later calls fail with the first reason");
  }
  const Bytes before = received;
  self.barrier();
  self.transport.progress();
  expect(same(received, before), "no buffer is touched after abort");
  self.barrier();
}

inline const std::vector<ConformanceCase>& conformance_cases() {
  static const std::vector<ConformanceCase> cases{
      {"a ring of messages of many sizes", ring_of_sizes},
      {"messages in many spans", vectored},
      {"messages to itself", to_itself},
      {"tags received out of order", tags_out_of_order},
      {"receives posted early and late", early_and_late_receives},
      {"all exchange with all in random order", all_to_all},
      {"a wrong length", wrong_length},
      {"a ping-pong that sleeps", sleeping_ping_pong},
      {"a sender that sleeps on a full ring", sleeping_on_a_full_ring},
      {"a receiver that does not receive", a_receiver_that_does_not_receive},
      {"quiet when idle", quiet_when_idle},
      {"failure of one peer", failure_of_a_peer, true},
      {"abort", aborting, true},
  };
  return cases;
}

}  // namespace rueda::test
