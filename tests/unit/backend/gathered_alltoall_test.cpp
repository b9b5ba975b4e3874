// All-to-all on process sets that span hosts: results, message counts, and choice of algorithm.
#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "effort.h"
#include "ranks/engine_ranks.h"
#include "rueda/types.h"

namespace rueda::test::gathered_alltoall_test {

namespace {

using HostOf = std::vector<int>;
using Splits = std::vector<std::vector<std::int64_t>>;  // by sender and receiver
using Bytes = std::vector<std::byte>;

void run_on(const HostOf& host_of, const std::string& algorithm,
            const std::function<void(int, Runtime&)>& body) {
  Options options;
  options.algorithm = algorithm;
  run_engines(static_cast<int>(host_of.size()), options, body, nullptr, Sharing::memory, host_of);
}

Splits even(const HostOf& host_of, std::int64_t rows) {
  return Splits(host_of.size(), std::vector<std::int64_t>(host_of.size(), rows));
}

// Many splits are zero; some ranks send nothing at all.
Splits uneven(const HostOf& host_of, std::int64_t max_rows, unsigned seed) {
  std::mt19937 random(seed);
  Splits splits = even(host_of, 0);
  for (auto& rows : splits) {
    if (random() % 4 == 0) continue;
    for (std::int64_t& each : rows) {
      if (random() % 3 > 0) each = static_cast<std::int64_t>(random()) % (max_rows + 1);
    }
  }
  return splits;
}

// The rows that one rank sends to another.
Bytes block(const Splits& splits, std::size_t from, std::size_t to, std::size_t row_bytes) {
  Bytes bytes(static_cast<std::size_t>(splits[from][to]) * row_bytes);
  std::mt19937 random(static_cast<unsigned>(from * 100 + to));
  const std::size_t drawn = std::min(bytes.size(), max_drawn);
  std::generate_n(bytes.begin(), drawn, [&] { return static_cast<std::byte>(random()); });
  for (std::size_t at = drawn; at < bytes.size(); at += drawn) {
    std::memcpy(&bytes[at], bytes.data(), std::min(drawn, bytes.size() - at));
  }
  return bytes;
}

struct Exchange {
  Splits splits;
  DataType dtype = DataType::uint8;
  std::int64_t row = 1;  // elements

  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(row) * size_of(dtype);
  }
};

// Submits the input of `rank`, which stays alive until the handle completes.
Handle start(Runtime& engine, const Exchange& exchange, int rank, Bytes& input,
             const std::string& name) {
  const auto own = static_cast<std::size_t>(rank);
  Submission submission;
  std::int64_t rows = 0;
  for (std::size_t to = 0; to < exchange.splits.size(); ++to) {
    const Bytes bytes = block(exchange.splits, own, to, exchange.row_bytes());
    input.insert(input.end(), bytes.begin(), bytes.end());
    rows += exchange.splits[own][to];
  }
  submission.rows = exchange.splits[own];
  submission.request.name = name;
  submission.request.collective = Collective::alltoall;
  submission.request.dtype = exchange.dtype;
  submission.request.shape = {rows, exchange.row};
  submission.input = input.data();
  return submit(engine, std::move(submission));
}

void expect_result(const Handle& handle, const Exchange& exchange, int rank) {
  finish(handle);
  const auto own = static_cast<std::size_t>(rank);
  const auto& output = handle.state()->output;
  Bytes expected;
  for (std::size_t from = 0; from < exchange.splits.size(); ++from) {
    expect(output.received_splits[from] == exchange.splits[from][own], "how much from whom");
    const Bytes bytes = block(exchange.splits, from, own, exchange.row_bytes());
    expected.insert(expected.end(), bytes.begin(), bytes.end());
  }
  expect(expected.empty() || std::memcmp(output.data.get(), expected.data(), expected.size()) == 0,
         "the bytes of " + std::to_string(expected.size()));
}

void exchange_all(Runtime& engine, const Exchange& exchange, int rank, const std::string& name) {
  Bytes input;
  const Handle handle = start(engine, exchange, rank, input, name);
  expect_result(handle, exchange, rank);
}

using Messages = std::array<std::atomic<std::int64_t>, 8>;

// Messages that each rank sends for one exchange, including those that carry row counts.
void count_messages(Messages& messages, const HostOf& host_of, const std::string& algorithm,
                    const Exchange& exchange) {
  run_on(host_of, algorithm, [&](int rank, Runtime& engine) {
    exchange_all(engine, exchange, rank, "x");
    messages[static_cast<std::size_t>(rank)] = metric(engine, "alltoall_messages_sent");
  });
}

}  // namespace

TEST_CASE("uneven rows of every type arrive, whichever way they go") {
  const auto host_of = GENERATE(from_range(efforts<HostOf>(
      {{0, 0, 1, 1}, {0, 1, 1, 1, 1}, {0, 1, 0, 2, 2}, {1, 0, 0}, {0, 0, 0, 1, 1, 2}, {0, 1}},
      {{0, 1, 1, 1, 1}, {0, 1, 0, 2, 2}, {1, 0, 0}, {0, 1}})));
  const auto algorithm = GENERATE("gathered", "pairwise", "auto", "gathered:0-600;pairwise:600-");
  run_on(host_of, algorithm, [&](int rank, Runtime& engine) {
    for (const DataTypeInfo& type : data_types) {
      const Exchange exchange{uneven(host_of, 40, static_cast<unsigned>(type.id)), type.id, 3};
      exchange_all(engine, exchange, rank, std::string(type.name));
    }
    exchange_all(engine, {even(host_of, 0)}, rank, "nothing");
    // Too large for the slots and for eager sends.
    for (const std::int64_t row : {2000, effort(20'000, 8'000)}) {
      const Exchange exchange{uneven(host_of, 20, 7), DataType::float32, row};
      exchange_all(engine, exchange, rank, "large " + std::to_string(row));
    }
  });
}

TEST_CASE("a rank sends one message for each host and rank there, not for each pair") {
  Messages sent{};
  SECTION("even hosts") {
    const HostOf host_of{0, 0, 0, 1, 1, 1};
    count_messages(sent, host_of, "gathered", {even(host_of, 5)});
    // One message with row counts, one with rows.
    for (std::size_t rank = 0; rank < 6; ++rank) CHECK(sent[rank] == 2);
    count_messages(sent, host_of, "pairwise", {even(host_of, 5)});
    for (std::size_t rank = 0; rank < 6; ++rank) CHECK(sent[rank] == 2 * 5);
  }
  SECTION("three hosts, wherever their ranks are") {
    const HostOf host_of{0, 1, 2, 0, 1, 2};
    count_messages(sent, host_of, "gathered", {even(host_of, 5)});
    for (std::size_t rank = 0; rank < 6; ++rank) CHECK(sent[rank] == 2 * 2);
  }
  SECTION("uneven hosts") {
    const HostOf host_of{0, 1, 1, 1};
    count_messages(sent, host_of, "gathered", {even(host_of, 5)});
    CHECK(sent[0] == 2 * 3);  // to each of three ranks
    CHECK(sent[1] == 2);      // rows and row counts from three ranks to one
    CHECK(sent[2] == 0);
    CHECK(sent[3] == 0);
  }
  SECTION("nothing takes no message but how much it is") {
    const HostOf host_of{0, 0, 1, 1};
    count_messages(sent, host_of, "gathered", {even(host_of, 0)});
    for (std::size_t rank = 0; rank < 4; ++rank) CHECK(sent[rank] == 1);
  }
}

TEST_CASE("whether rows are gathered follows from how many go from host to host") {
  const HostOf host_of{0, 0, 1, 1};
  Exchange exchange{even(host_of, 10)};
  // Host 0 sends more to host 1, but only from rank 0.
  exchange.splits[0][2] = 4000;
  Messages sent{};
  count_messages(sent, host_of, "gathered:0-1000;pairwise:1000-", exchange);
  for (const std::size_t rank : {0U, 1U}) CHECK(sent[rank] == 1 + 2);
  for (const std::size_t rank : {2U, 3U}) CHECK(sent[rank] == 1 + 1);
}

TEST_CASE("many exchanges at once, between other collectives, keep apart") {
  const HostOf host_of{0, 0, 1, 1, 1};
  run_on(host_of, "auto", [&](int rank, Runtime& engine) {
    for (int step = 0; step < effort(4, 2); ++step) {
      std::vector<Exchange> exchanges;
      std::vector<Bytes> inputs(6);
      std::vector<Handle> handles;
      std::vector<std::vector<float>> sums(6, std::vector<float>(30'000, 1));
      for (unsigned i = 0; i < 6; ++i) {
        const std::int64_t row = i % 2 == 0 ? 16 : 9000;
        exchanges.push_back({uneven(host_of, 12, i), DataType::int32, row});
      }
      for (std::size_t i = 0; i < 6; ++i) {
        handles.push_back(start(engine, exchanges[i], rank, inputs[i], "a" + std::to_string(i)));
        handles.push_back(
            submit(engine, allreduce_of(sums[i], DataType::float32, "s" + std::to_string(i))));
      }
      for (std::size_t i = 0; i < 6; ++i) {
        expect_result(handles[2 * i], exchanges[i], rank);
        finish(handles[2 * i + 1]);
        expect(sums[i].back() == 5, "the sum");
      }
    }
  });
}

TEST_CASE("an exchange that waits for a rank that fails ends on all ranks of all hosts") {
  const HostOf host_of{0, 0, 1, 1};
  const int failing = GENERATE(0, 3);
  const auto algorithm = GENERATE("gathered", "pairwise:0-");
  std::barrier together(4);
  run_on(host_of, algorithm, [&](int rank, Runtime& engine) {
    const Exchange exchange{even(host_of, 5'000'000)};
    Bytes input;
    const Handle handle = start(engine, exchange, rank, input, "x");
    await([&] { return metric(engine, "alltoall_batches") > 0; }, "an exchange that begins");
    together.arrive_and_wait();
    if (rank == failing) engine.abort("gives up");
    expect(handle.state()->wait(soon()) == FutexWake::changed, "an operation that ends");
    together.arrive_and_wait();
    const Status& status = handle.state()->status;
    expect(status.ok() || status.code() == ErrorCode::peer_lost, status.to_string());
  });
}

}  // namespace rueda::test::gathered_alltoall_test
