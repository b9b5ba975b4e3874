// Requests and answers are decoded as they were encoded; other bytes are refused.
#include "server/table_message.h"

#include <catch2/catch.hpp>
#include <random>

namespace rueda::test::table_message_test {
namespace {

using Bytes = std::vector<std::byte>;

std::uint64_t bits(std::mt19937_64& random) {
  return random() >> (random() % 64);
}

Bytes some_bytes(std::mt19937_64& random) {
  Bytes bytes(random() % 40);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TableRequest some_request(std::mt19937_64& random) {
  TableRequest request;
  request.table = bits(random);
  request.number = bits(random);
  request.verb = static_cast<TableVerb>(random() % table_verbs);
  request.is_replica = random() % 2 == 0;
  request.begin = static_cast<std::int64_t>(bits(random) >> 1);
  request.count = static_cast<std::int64_t>(bits(random) >> 1);
  request.factor = static_cast<float>(random() % 1000) / 7;
  request.by_staleness = random() % 2 == 0;
  request.ticks = random() % 2 == 0;
  request.finishes = random() % 2 == 0;
  request.restarts = random() % 2 == 0;
  request.seen = bits(random);
  request.min_clock = static_cast<std::int64_t>(bits(random)) - 5;
  request.function = std::string(random() % 9, 'f');
  return request;
}

TEST_CASE("a request comes back as it was written") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    TableRequest request = some_request(random);
    const Bytes payload = some_bytes(random);
    request.is_inline = random() % 2 == 0;
    request.payload_bytes = request.is_inline ? payload.size() : bits(random);
    const Bytes bytes = encode(request, request.is_inline ? payload : Bytes{});
    const auto decoded = decode_table_request(bytes);
    REQUIRE(decoded);
    const TableRequest& back = decoded->message;
    REQUIRE(back.table == request.table);
    REQUIRE(back.number == request.number);
    REQUIRE(back.verb == request.verb);
    REQUIRE(back.is_replica == request.is_replica);
    REQUIRE(back.begin == request.begin);
    REQUIRE(back.count == request.count);
    REQUIRE(back.factor == request.factor);
    REQUIRE(back.by_staleness == request.by_staleness);
    REQUIRE(back.ticks == request.ticks);
    REQUIRE(back.finishes == request.finishes);
    REQUIRE(back.restarts == request.restarts);
    REQUIRE(back.seen == request.seen);
    REQUIRE(back.min_clock == request.min_clock);
    REQUIRE(back.function == request.function);
    REQUIRE(back.payload_bytes == request.payload_bytes);
    REQUIRE(back.is_inline == request.is_inline);
    if (request.is_inline) {
      REQUIRE(Bytes(decoded->payload.begin(), decoded->payload.end()) == payload);
    }
    // No prefix is accepted.
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      REQUIRE_FALSE(decode_table_request(std::span(bytes).first(length)));
    }
  }
}

TEST_CASE("an answer comes back as it was written") {
  std::mt19937_64 random(4);
  for (int round = 0; round < 2000; ++round) {
    TableAnswer answer;
    answer.number = bits(random);
    if (random() % 2 == 0) answer.status = Status(ErrorCode::stalled, "late", 3);
    answer.version = bits(random);
    answer.staleness = bits(random);
    const Bytes payload = some_bytes(random);
    answer.is_inline = random() % 2 == 0;
    answer.payload_bytes = answer.is_inline ? payload.size() : bits(random);
    const Bytes bytes = encode(answer, answer.is_inline ? payload : Bytes{});
    const auto decoded = decode_table_answer(bytes);
    REQUIRE(decoded);
    const TableAnswer& back = decoded->message;
    REQUIRE(back.number == answer.number);
    REQUIRE(back.status.code() == answer.status.code());
    REQUIRE(back.status.message() == answer.status.message());
    REQUIRE(back.version == answer.version);
    REQUIRE(back.staleness == answer.staleness);
    REQUIRE(back.payload_bytes == answer.payload_bytes);
    if (answer.is_inline) {
      REQUIRE(Bytes(decoded->payload.begin(), decoded->payload.end()) == payload);
    }
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      REQUIRE_FALSE(decode_table_answer(std::span(bytes).first(length)));
    }
  }
}

TEST_CASE("bytes that no rank writes are no request") {
  TableRequest request;
  const Bytes good = encode(request, {});
  REQUIRE(decode_table_request(good));
  Bytes verb = good;
  verb[2] = static_cast<std::byte>(table_verbs);
  CHECK_FALSE(decode_table_request(verb));
  Bytes flags = good;
  flags[3] = std::byte{255};
  CHECK_FALSE(decode_table_request(flags));
  request.begin = -1;
  CHECK_FALSE(decode_table_request(encode(request, {})));
  request.begin = 0;
  request.count = -1;
  CHECK_FALSE(decode_table_request(encode(request, {})));
  Bytes longer = good;
  longer.push_back(std::byte{0});
  CHECK_FALSE(decode_table_request(longer));
}

}  // namespace
}  // namespace rueda::test::table_message_test
