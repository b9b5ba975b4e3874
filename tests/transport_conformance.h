// What every transport must do, as functions that each rank calls with its own transport. They
// throw at the first thing that is not as it must be.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "core/wait_fd.h"
#include "rank_threads.h"
#include "transport/transport.h"

namespace rueda::test {

struct ConformanceRank {
  Transport& transport;
  std::function<void()> barrier;  // of all ranks; throws when it does not come about

  [[nodiscard]] int rank() const { return transport.rank(); }
  [[nodiscard]] int size() const { return transport.size(); }
};

struct ConformanceCase {
  const char* name;
  void (*run)(ConformanceRank&);
  bool ends_transport = false;  // run it last, or on a transport of its own
};

using Bytes = std::vector<std::byte>;

inline Bytes pattern(std::size_t size, std::uint32_t seed) {
  Bytes bytes(size);
  std::uint32_t state = seed * 2654435761U + 12345U;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

inline Ticket send(ConformanceRank& self, int peer, Tag tag, const Bytes& bytes) {
  return self.transport.send(peer, tag, std::array{ConstBytes(bytes)});
}
inline Ticket receive(ConformanceRank& self, int peer, Tag tag, Bytes& bytes) {
  return self.transport.recv(peer, tag, std::array{MutableBytes(bytes)});
}
inline void finish_all(ConformanceRank& self, const std::vector<Ticket>& tickets) {
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    expect_ok(self.transport.wait(tickets[i], soon()), str("ticket ", i));
  }
}

inline const std::vector<std::size_t>& conformance_sizes() {
  static const std::vector<std::size_t> sizes{
      0, 1, 7, 4096, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3 << 20};
  return sizes;
}

inline void ring_of_sizes(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  for (const std::size_t size : conformance_sizes()) {
    const Bytes sent = pattern(size, static_cast<std::uint32_t>(self.rank()));
    Bytes received(size);
    finish_all(self, {receive(self, left, 1, received), send(self, right, 1, sent)});
    expect(received == pattern(size, static_cast<std::uint32_t>(left)), str("bytes of ", size));
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
  finish_all(self, {self.transport.send(peer, 9, sources), self.transport.recv(peer, 9, targets)});
  expect(received == pattern(300'000, static_cast<std::uint32_t>(peer)), "bytes of many spans");

  const Ticket nothing_in = self.transport.recv(peer, 9, {});
  finish_all(self, {self.transport.send(peer, 9, {}), nothing_in});
}

inline void to_itself(ConformanceRank& self) {
  for (const std::size_t size : conformance_sizes()) {
    const Bytes sent = pattern(size, 5);
    Bytes received(size);
    const Ticket out = send(self, self.rank(), 3, sent);
    finish_all(self, {receive(self, self.rank(), 3, received), out});
    expect(received == sent, str("bytes of ", size, " to itself"));
  }
}

// The message of the last tag is received first, each size beyond what a ring holds.
inline void tags_out_of_order(ConformanceRank& self) {
  constexpr Tag tags = 20;
  const int peer = self.size() - 1 - self.rank();
  std::vector<Bytes> sent;
  std::vector<Bytes> received(tags, Bytes(100'000));
  std::vector<Ticket> sends;
  for (Tag tag = 0; tag < tags; ++tag) sent.push_back(pattern(100'000, tag));
  for (Tag tag = 0; tag < tags; ++tag) sends.push_back(send(self, peer, tag, sent[tag]));
  for (Tag tag = tags; tag-- > 0;) {
    finish_all(self, {receive(self, peer, tag, received[tag])});
    expect(received[tag] == sent[tag], str("bytes of tag ", tag));
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
  self.barrier();  // now the second message is on its way everywhere
  self.transport.progress();
  sends.push_back(receive(self, left, 2, late));
  finish_all(self, sends);
  expect(early == sent && late == sent, "bytes of early and late receives");
}

// Every rank exchanges with every rank, itself too, several messages per tag, starting in an order
// of its own.
inline void all_to_all(ConformanceRank& self) {
  struct Operation {
    bool sends;
    int peer;
    Tag tag;
  };
  constexpr Tag tags = 3;
  constexpr int repetitions = 4;
  const auto content = [](int from, int to, Tag tag, int index) {
    const auto seed =
        static_cast<std::uint32_t>(((from * 31 + to) * 31 + static_cast<int>(tag)) * 31 + index);
    return pattern((seed * 7919U) % 60'000U, seed);
  };
  std::vector<Operation> operations;
  for (int peer = 0; peer < self.size(); ++peer) {
    for (Tag tag = 0; tag < tags; ++tag) {
      for (int i = 0; i < 2 * repetitions; ++i) operations.push_back({i % 2 == 0, peer, tag});
    }
  }
  std::mt19937 random(static_cast<std::uint32_t>(1000 + self.rank()));
  std::shuffle(operations.begin(), operations.end(), random);

  std::map<std::pair<int, Tag>, int> sent_count;
  std::map<std::pair<int, Tag>, int> received_count;
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
  expect(buffers == expected, "bytes of an exchange of all with all");
}

inline void wrong_length(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  for (const std::size_t sent_size : {std::size_t{24}, std::size_t{0}, std::size_t{400'000}}) {
    const Bytes sent = pattern(sent_size, 1);
    Bytes received(32);
    const Ticket in = receive(self, left, 4, received);
    const Ticket out = send(self, right, 4, sent);
    const Status status = self.transport.wait(in, soon());
    expect(status.code() == ErrorCode::transport, "a wrong length fails: " + status.to_string());
    expect(status.peer() == left, "the error names the peer");
    for (const std::string& part : {str("rank ", left), str(sent_size, " "), str(32)}) {
      expect(status.to_string().find(part) != std::string::npos,
             "'" + part + "' is in: " + status.to_string());
    }
    // What comes after it is not harmed.
    const Bytes next = pattern(32, 2);
    finish_all(self, {receive(self, left, 4, received), send(self, right, 4, next), out});
    expect(received == next, "bytes after a wrong length");
    self.barrier();
  }
}

// Sleeps for each message. A wake-up that is lost shows as a deadline that passes.
inline void sleeping_ping_pong(ConformanceRank& self) {
  const int peer = self.size() - 1 - self.rank();
  if (peer == self.rank()) return;
  for (std::uint32_t round = 0; round < 2000; ++round) {
    const Bytes sent = pattern(round % 50, round);
    Bytes received(sent.size());
    if (self.rank() < peer) finish_all(self, {send(self, peer, 6, sent)});
    finish_all(self, {receive(self, peer, 6, received)});
    if (self.rank() > peer) finish_all(self, {send(self, peer, 6, sent)});
    expect(received == sent, str("bytes of round ", round));
  }
}

// A sender that sleeps while its peer is slow to drain must be woken when there is room again.
inline void sleeping_on_a_full_ring(ConformanceRank& self) {
  const int right = (self.rank() + 1) % self.size();
  const int left = (self.rank() + self.size() - 1) % self.size();
  const Bytes sent = pattern(3 << 20, 8);
  Bytes received(sent.size());
  for (int round = 0; round < 5; ++round) {
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
    expect(received == sent, str("bytes of round ", round));
  }
}

inline void quiet_when_idle(ConformanceRank& self) {
  self.barrier();
  while (self.transport.progress()) {
  }
  if (self.transport.wait_fd() >= 0) {
    expect(self.transport.arm(), "an idle transport can be slept upon");
    expect(!wait_readable(self.transport.wait_fd(), Clock::now()), "an idle descriptor is quiet");
    self.transport.disarm();
  }
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
  expect(received == before, "no buffer is touched after abort");
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
      {"quiet when idle", quiet_when_idle},
      {"abort", aborting, true},
  };
  return cases;
}

}  // namespace rueda::test
