// In which order messages of a stream complete, whatever the order of their pieces.
#include "mpi/message_streams.h"

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <random>
#include <vector>

namespace rueda::test::message_streams_test {

namespace {

using Streams = mpi::MessageStreams<int>;
using Stream = Streams::Stream;
using Message = Streams::Message;

const std::array<ConstBytes, 0> nothing{};

// A message without further pieces, `in_flight` of which are still in flight.
Message& add_ended(Streams& streams, Stream& stream, int in_flight) {
  Message& message = streams.add(stream, nothing);
  message.in_flight = in_flight;
  streams.end(message, {});
  return message;
}

}  // namespace

TEST_CASE("a message is the concatenation of the spans that are not empty") {
  Streams streams;
  std::array<std::byte, 10> bytes{};
  const std::array<MutableBytes, 3> spans{MutableBytes(bytes.data(), 4), MutableBytes(),
                                          MutableBytes(bytes.data() + 5, 2)};
  const Message& message = streams.add(streams.find(true, 3, 8), spans);
  CHECK(message.length == 6);
  REQUIRE(message.segments.size() == 2);
  CHECK(message.segments[1].address == bytes.data() + 5);
  CHECK(message.segments[1].length == 2);
  CHECK(message.ticket->peer == 3);
  CHECK_FALSE(message.ticket->done);
}

TEST_CASE("a stream is found by direction, peer and tag, as long as there is something in it") {
  Streams streams;
  Stream& stream = streams.find(true, 1, 5);
  stream.arrivals.push_back(7);
  CHECK(&streams.find(true, 1, 5) == &stream);
  CHECK(streams.find(true, 1, 5).arrivals.size() == 1);
  CHECK(streams.find(false, 1, 5).arrivals.empty());
  CHECK(streams.find(true, 2, 5).arrivals.empty());
  CHECK(streams.find(true, 1, 6).arrivals.empty());
  CHECK(streams.all_of(true, 1).size() == 2);
  streams.complete_front(streams.find(true, 2, 5));
  CHECK(streams.all_of(true, 2).empty());
  streams.complete_front(stream);  // early arrivals are kept
  CHECK(streams.find(true, 1, 5).arrivals.size() == 1);
}

TEST_CASE("tickets of a stream are completed from its front, in whatever order messages end") {
  std::mt19937 random(GENERATE(range(0U, 40U)));
  Streams streams;
  Stream* stream = &streams.find(GENERATE(true, false), 1, 5);
  const int count = std::uniform_int_distribution(1, 8)(random);
  std::vector<Message*> under_way;
  std::vector<Ticket> tickets;
  for (int i = 0; i < count; ++i) {
    Message& message = add_ended(streams, *stream, std::uniform_int_distribution(1, 3)(random));
    under_way.push_back(&message);
    tickets.push_back(message.ticket);
  }
  std::vector<int> pieces;
  for (const Message* message : under_way) pieces.push_back(message->in_flight);
  while (!under_way.empty()) {
    const auto next = std::uniform_int_distribution<std::size_t>(0, under_way.size() - 1)(random);
    Message* const message = under_way[next];
    const bool is_over = --message->in_flight == 0;
    if (is_over) under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(next));
    // The first message still in flight, and all after it, are incomplete.
    std::size_t first = 0;
    const Ticket front = under_way.empty() ? nullptr : [&] {
      for (const Ticket& ticket : tickets) {
        for (const Message* each : under_way) {
          if (each->ticket == ticket) return ticket;
        }
      }
      return Ticket();
    }();
    streams.complete_front(*stream);
    while (first < tickets.size() && tickets[first] != front) ++first;
    for (std::size_t i = 0; i < tickets.size(); ++i) CHECK(tickets[i]->done == (i < first));
  }
  CHECK(streams.empty());
}

TEST_CASE("a peer is awaited until the last of its messages has no further pieces") {
  Streams streams;
  Message& first = streams.add(streams.find(true, 4, 1), nothing);
  Message& second = streams.add(streams.find(true, 4, 2), nothing);
  streams.add(streams.find(false, 5, 1), nothing);
  CHECK(streams.awaited() == std::map<int, int>{{4, 2}});
  streams.end(second, {});
  streams.end(second, Status(ErrorCode::transport, "the first error"));
  streams.end(second, Status(ErrorCode::transport, "another"));
  CHECK(streams.awaited() == std::map<int, int>{{4, 1}});
  CHECK(second.status.message() == "the first error");
  streams.end(first, {});
  CHECK(streams.awaited().empty());
}

TEST_CASE("what is dropped fails with the reason, and nothing else does") {
  Streams streams;
  Stream& lost = streams.find(true, 1, 1);
  const Ticket first = streams.add(lost, nothing).ticket;
  const Ticket second = add_ended(streams, lost, 1).ticket;
  const Ticket sent = streams.add(streams.find(false, 1, 1), nothing).ticket;
  const Ticket other = streams.add(streams.find(true, 2, 1), nothing).ticket;
  streams.drop([](const Stream& stream) { return stream.peer == 1; },
               Status(ErrorCode::peer_lost, "rank 1 is gone"));
  for (const Ticket& ticket : {first, second, sent}) {
    CHECK(ticket->done);
    CHECK(ticket->status.message() == "rank 1 is gone");
  }
  CHECK_FALSE(other->done);
  CHECK(streams.awaited() == std::map<int, int>{{2, 1}});
  CHECK(streams.all_of(false, 1).empty());
  streams.drop([](const Stream&) { return true; }, Status(ErrorCode::shutdown, "closed"));
  CHECK(other->done);
  CHECK(streams.empty());
}

}  // namespace rueda::test::message_streams_test
