// Messages in chunks over simulated streams, which reorder chunks, break, and leave it open what
// has arrived.
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "tcp/incoming_messages.h"
#include "tcp/interval_set.h"
#include "tcp/outgoing_messages.h"
#include "tcp/stream_opening.h"
#include "unit/contains.h"

namespace rueda::test::tcp_messages_test {

namespace {

using Content = std::vector<std::byte>;

Content content_of(std::size_t size, std::uint32_t seed) {
  Content bytes(size);
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// A chunk taken by a stream, with a copy of its bytes at that moment.
struct Carried {
  OutgoingMessages::Chunk chunk;
  Content bytes;
};
struct Stream {
  std::deque<Carried> under_way;
  std::deque<OutgoingMessages::Chunk> arrived;  // not acknowledged yet
};

// Both ends and the streams between them.
struct Link {
  OutgoingMessages out{1};
  IncomingMessages in{0};
  std::vector<Stream> streams{std::vector<Stream>(3)};

  void take(Stream& stream, std::size_t limit) {
    auto chunk = out.take(limit);
    if (!chunk) return;
    std::vector<ConstBytes> parts;
    chunk->append_to(parts);
    Content bytes;
    for (const ConstBytes& part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
    REQUIRE(bytes.size() == chunk->bytes);
    out.mark_written(*chunk);
    stream.under_way.push_back({std::move(*chunk), std::move(bytes)});
  }
  void arrive(Stream& stream) {
    if (stream.under_way.empty()) return;
    Carried next = std::move(stream.under_way.front());
    stream.under_way.pop_front();
    put(next);
    stream.arrived.push_back(std::move(next.chunk));
  }
  // Returns whether its sender may be told that the message is complete.
  bool put(const Carried& carried) {
    const ChunkHeader header = carried.chunk.header();
    const auto message = in.begin(header);
    REQUIRE(message.ok());
    std::vector<MutableBytes> parts;
    IncomingMessages::place(**message, header.offset, header.bytes, parts);
    const std::byte* source = carried.bytes.data();
    for (const MutableBytes& part : parts) {
      std::copy_n(source, part.size(), part.begin());
      source += part.size();
    }
    return in.add(*message, header.offset, header.bytes);
  }
  void acknowledge(Stream& stream) {
    if (stream.arrived.empty()) return;
    out.acknowledge(stream.arrived.front());
    stream.arrived.pop_front();
  }
  // Some chunks in flight still arrive; no acknowledgement of what arrived does.
  void break_off(Stream& stream, std::size_t arriving) {
    while (arriving-- > 0) arrive(stream);
    while (!stream.under_way.empty()) {
      out.give_back(std::move(stream.under_way.back().chunk));
      stream.under_way.pop_back();
    }
    while (!stream.arrived.empty()) {
      out.give_back(std::move(stream.arrived.back()));
      stream.arrived.pop_back();
    }
  }
  void settle() {
    while (out.has_unfinished()) {
      for (Stream& stream : streams) {
        take(stream, 10'000);
        arrive(stream);
        acknowledge(stream);
      }
    }
  }
};

}  // namespace

TEST_CASE("messages arrive whole and in the order of their tag, whatever streams do") {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t limit) { return random() % limit; };
    Link link;
    std::map<Tag, std::vector<Content>> sent;
    std::map<Tag, std::deque<Content>> received;
    std::vector<Ticket> tickets;
    std::vector<std::pair<Ticket, std::size_t>> receives;
    const auto expected = [&] {
      std::size_t bytes = 0;
      for (const auto& [ticket, length] : receives) bytes += ticket->done ? 0 : length;
      return bytes;
    };
    const auto post = [&](Tag tag) {
      auto& buffers = received[tag];
      const auto& messages = sent[tag];
      if (buffers.size() == messages.size()) return;
      buffers.emplace_back(messages[buffers.size()].size());
      const MutableBytes all(buffers.back());
      const std::size_t cut = below(all.size() + 1);
      tickets.push_back(link.in.recv(tag, std::array{all.first(cut), all.subspan(cut)}));
      receives.emplace_back(tickets.back(), all.size());
    };
    for (int step = 0; step < 600; ++step) {
      Stream& stream = link.streams[below(link.streams.size())];
      const Tag tag{.sequence = below(3)};
      switch (below(12)) {
        case 0: {
          const std::size_t size = below(4) == 0 ? below(60'000) : below(300);
          sent[tag].push_back(content_of(size, static_cast<std::uint32_t>(random())));
          const ConstBytes all(sent[tag].back());
          tickets.push_back(
              link.out.send(tag, std::array{all.first(size / 3), all.subspan(size / 3)}));
          break;
        }
        case 1: post(tag); break;
        case 2: link.break_off(stream, below(4)); break;
        case 3:
        case 4:
        case 5: link.take(stream, 1 + below(9'000)); break;
        case 6:
        case 7: link.acknowledge(stream); break;
        default: link.arrive(stream);
      }
      REQUIRE(link.in.expected_bytes() == expected());
    }
    for (std::uint64_t number = 0; number < 3; ++number) {
      const Tag tag{.sequence = number};
      while (received[tag].size() < sent[tag].size()) post(tag);
    }
    link.settle();
    for (const Ticket& ticket : tickets) {
      REQUIRE(ticket->done);
      REQUIRE(ticket->status.ok());
    }
    for (const auto& [tag, messages] : sent) {
      REQUIRE(std::equal(messages.begin(), messages.end(), received[tag].begin()));
    }
    REQUIRE_FALSE(link.out.has_waiting());
    REQUIRE(link.in.expected_bytes() == 0);
  }
}

TEST_CASE("a long message is done when it is acknowledged, a short one when it is written") {
  Link link;
  const Content large = content_of(OutgoingMessages::max_copied_bytes + 1, 1);
  const Ticket long_one = link.out.send({.sequence = 1}, std::array{ConstBytes(large)});
  Content small = content_of(OutgoingMessages::max_copied_bytes, 2);
  const Content small_before = small;
  const Ticket short_one = link.out.send({.sequence = 1}, std::array{ConstBytes(small)});
  std::fill(small.begin(), small.end(), std::byte{0});  // the library has copied it
  Stream& stream = link.streams.front();
  link.take(stream, max_chunk_bytes);
  link.take(stream, max_chunk_bytes);
  CHECK(short_one->done);
  CHECK_FALSE(long_one->done);
  link.arrive(stream);
  link.arrive(stream);
  CHECK_FALSE(long_one->done);
  link.acknowledge(stream);
  CHECK(long_one->done);
  Content first(large.size());
  Content second(small.size());
  CHECK(link.in.recv({.sequence = 1}, std::array{MutableBytes(first)})->done);
  CHECK(link.in.recv({.sequence = 1}, std::array{MutableBytes(second)})->done);
  CHECK(first == large);
  CHECK(second == small_before);
}

TEST_CASE("bytes that come twice do not touch a message that is over") {
  Link link;
  const Content bytes = content_of(100'000, 3);
  Content target(bytes.size());
  const Ticket in = link.in.recv({.sequence = 7}, std::array{MutableBytes(target)});
  const Ticket out = link.out.send({.sequence = 7}, std::array{ConstBytes(bytes)});
  Stream& slow = link.streams[0];
  Stream& fast = link.streams[1];
  link.take(slow, 60'000);
  Carried late = slow.under_way.front();
  link.break_off(slow, 0);
  while (link.out.has_waiting()) link.take(fast, 60'000);
  while (!fast.under_way.empty()) link.arrive(fast);
  REQUIRE(in->done);
  std::fill(target.begin(), target.end(), std::byte{0});  // its owner reuses it
  CHECK(link.put(late));  // its first acknowledgement may have been lost
  CHECK(std::all_of(target.begin(), target.end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_CASE("what cannot be part of a message is refused") {
  IncomingMessages in(4);
  const std::vector<ChunkHeader> wrong{
      {.message = 0, .length = 8, .bytes = 8},
      {.message = 3, .previous = 3, .length = 8, .bytes = 8},
      {.message = 1, .length = 8, .offset = 9, .bytes = 0},
      {.message = 1, .length = 8, .offset = 4, .bytes = 5},
      {.message = 1, .length = max_message_bytes + 1, .bytes = 8},
      {.message = 1, .length = 1 << 30, .bytes = max_chunk_bytes + 1},
  };
  for (const ChunkHeader& header : wrong) {
    const auto message = in.begin(header);
    REQUIRE_FALSE(message.ok());
    CHECK(contains(message.status(), "rank 4"));
  }
  REQUIRE(in.begin({.message = 1, .length = 8, .bytes = 4}).ok());
  CHECK_FALSE(in.begin({.message = 1, .length = 9, .bytes = 4}).ok());
  CHECK_FALSE(in.begin({.message = 1, .length = 8, .tag = {.sequence = 2}, .bytes = 4}).ok());
}

// The bytes are discarded: a length claimed by the peer must not end the process.
TEST_CASE("a message for which there is no memory fails the receive that asks for it") {
  Link link;
  const ChunkHeader header{
      .message = 1, .length = std::uint64_t{1} << 47, .tag = {.sequence = 5}, .bytes = 8};
  const auto message = link.in.begin(header);
  REQUIRE(message.ok());
  for (int time = 0; time < 2; ++time) {
    std::vector<MutableBytes> parts;
    IncomingMessages::place(**message, 0, 8, parts);
    CHECK(parts.empty());
  }
  CHECK_FALSE(link.in.add(*message, 0, 8));
  Content buffer(8);
  const Ticket ticket = link.in.recv({.sequence = 5}, std::array{MutableBytes(buffer)});
  REQUIRE(ticket->done);
  CHECK(contains(ticket->status, "no memory for the 140737488355328 bytes"));
  CHECK(link.in.expected_bytes() == 0);
}

TEST_CASE("an interval set counts what is new and joins what touches") {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    IntervalSet set;
    std::set<std::uint64_t> model;
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t begin = random() % 100;
      const std::uint64_t end = begin + random() % 12;
      std::uint64_t fresh = 0;
      for (std::uint64_t number = begin; number < end; ++number) {
        fresh += model.insert(number).second ? 1 : 0;
      }
      REQUIRE(set.add(begin, end) == fresh);
    }
    std::size_t intervals = 0;
    for (std::uint64_t number = 0; number < 120; ++number) {
      REQUIRE(set.contains(number) == model.contains(number));
      if (model.contains(number) && !model.contains(number - 1)) ++intervals;
    }
    REQUIRE(set.intervals() == intervals);
  }
}

TEST_CASE("a stream is opened by who knows the key, and only once") {
  const Key key("secret of the world");
  const Key other("another");
  StreamOpening called(key, 2, 5);
  StreamOpening calling(key, 2, 5);
  const auto answer = calling.answer(called.challenge());
  const auto confirmation = called.confirm(answer);
  REQUIRE(confirmation);
  CHECK(calling.is_confirmation(*confirmation));

  StreamOpening again(key, 2, 5);
  CHECK_FALSE(again.confirm(answer));  // an overheard answer, to another challenge
  StreamOpening third(key, 3, 5);
  CHECK_FALSE(called.confirm(third.answer(called.challenge())));
  StreamOpening stranger(other, 2, 5);
  CHECK_FALSE(called.confirm(stranger.answer(called.challenge())));
  CHECK_FALSE(called.confirm({}));
  CHECK_FALSE(calling.is_confirmation({}));
}

TEST_CASE("operations of a process set are handed out in their order") {
  OutgoingMessages out(1);
  const Content content = content_of(50 << 10, 1);
  const auto send = [&](const Tag& tag, std::int32_t priority = 0) {
    const ConstBytes span(content);
    std::ignore = out.send(tag, {&span, 1}, priority);
  };
  const auto taken = [&] {
    std::vector<Tag> tags;
    while (const auto chunk = out.take(40 << 10)) tags.push_back(chunk->message->tag);
    return tags;
  };
  const auto twice = [](const std::vector<Tag>& tags) {
    std::vector<Tag> each;
    for (const Tag& tag : tags) each.insert(each.end(), 2, tag);
    return each;
  };
  const Tag second{.group = 3, .sequence = 2};
  const Tag third{.group = 3, .sequence = 3};
  SECTION("whatever the order of the calls") {
    const Tag second_later{.group = 3, .sequence = 2, .part = 1};
    for (const Tag& tag : {second, third, second_later}) send(tag);
    CHECK(taken() == twice({second, second_later, third}));
  }
  SECTION("unless something else waits between") {
    const Tag other_set{.group = 4, .sequence = 1};
    const Tag other_order{.group = 3, .stream = 1, .sequence = 1};
    const Tag between = GENERATE_COPY(other_set, other_order);
    for (const Tag& tag : {third, between, second}) send(tag);
    CHECK(taken() == twice({third, between, second}));
  }
  SECTION("not if they are between two ranks") {
    const Tag one{.group = messages_group, .sequence = 1};
    const Tag two{.group = messages_group, .sequence = 2};
    for (const Tag& tag : {two, one}) send(tag);
    CHECK(taken() == twice({two, one}));
  }
  SECTION("unless a later one is more urgent") {
    send(second);
    send(third, 1);
    send(second, 0);
    CHECK(taken() == twice({third, second, second}));
  }
}

TEST_CASE("what is more urgent is handed out before the rest of what was begun") {
  OutgoingMessages out(1);
  const Content large = content_of(300 << 10, 1);
  const Content small = content_of(100 << 10, 2);
  const auto send = [&](std::uint64_t number, const Content& content, std::int32_t priority) {
    const ConstBytes span(content);
    return out.send({.sequence = number}, {&span, 1}, priority);
  };
  const auto tags = [&](int chunks) {
    std::vector<std::uint64_t> taken;
    for (int i = 0; i < chunks; ++i) {
      const auto chunk = out.take(100 << 10);
      taken.push_back(chunk ? chunk->message->tag.sequence : 99);
    }
    return taken;
  };
  const Ticket first = send(1, large, 0);
  CHECK(tags(1) == std::vector<std::uint64_t>{1});
  const Ticket late = send(4, small, -1);
  const Ticket urgent = send(2, small, 5);
  const Ticket more = send(3, small, 7);
  const Ticket again = send(2, small, 5);
  CHECK(tags(7) == std::vector<std::uint64_t>{3, 2, 2, 1, 1, 4, 99});
}

}  // namespace rueda::test::tcp_messages_test
