// Messages that no negotiator sends must not crash, hang, exhaust memory or leave a rank waiting.
#include <limits>

#include "effort.h"
#include "ranks/negotiation_simulator.h"

namespace rueda::test::negotiation_malformed_test {
namespace {

constexpr int size = 7;

struct Sent {
  int from;
  int to;
  std::vector<std::byte> message;
};

NegotiatorOptions small_options() {
  NegotiatorOptions options;
  options.fanout = 2;
  options.cache_capacity = 2;
  options.stall_warning = seconds(4);
  options.stall_error = [] { return seconds(9); };
  return options;
}

Request set_change(Collective collective, std::vector<int> ranks, int id) {
  Request request = allreduce_of(collective == Collective::add_process_set ? "add" : "remove", {});
  request.collective = collective;
  request.set_ranks = std::move(ranks);
  request.set_id = id;
  return request;
}

Request elsewhere(int set) {
  Request request = allreduce_of("elsewhere");
  request.error = Status(ErrorCode::mismatch, "handed to another set", -1,
                         {.field = "process set", .values = {"the world", "7"}});
  request.other_set = set;
  return request;
}

// Exercises everything: numbers, resends, mismatches, groups, amendments, refusals, changes of
// sets, reports, joins.
void exercise(NegotiationSimulator& simulator, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (int rank = 0; rank < size; ++rank) {
      const auto submit = [&](const std::vector<Request>& requests) {
        for (const Request& request : requests) {
          if (simulator.rank(rank).pending.contains(request.name)) return;
        }
        if (simulator.negotiator(rank).closed().ok()) {
          static_cast<void>(simulator.submit(rank, requests));
        }
      };
      submit({allreduce_of("sum", {2, 3})});
      submit({allgather_of("gather", rank % 3)});
      submit({allreduce_of("odd", {rank == 3 && round == 1 ? 1 : 2})});
      submit(group_of("g", 2));
      if (rank != 5 || round > 1) submit({allreduce_of("late")});
      submit({set_change(Collective::add_process_set, {1, rank == 6 && round == 2 ? 4 : 3}, -1)});
      submit({set_change(Collective::remove_process_set, {}, round)});
      submit({rank == 4 && round == 2 ? elsewhere(7) : allreduce_of("elsewhere")});
      simulator.steps(simulator.below(9));
      if (rank == 2) simulator.amend(rank, "sum", Status(ErrorCode::duplicate_name, "twice"));
    }
    if (round == 1) simulator.advance(5);
    simulator.settle();
  }
  for (int rank = 0; rank < size; ++rank) simulator.join(rank);
  simulator.settle();
}

std::vector<Sent> corpus() {
  NegotiationSimulator simulator(size, small_options(), 3);
  std::vector<Sent> corpus;
  simulator.on_send = [&](int from, int to, std::vector<std::byte>& message) {
    corpus.push_back({from, to, message});
  };
  exercise(simulator, 4);
  return corpus;
}

// Delivers `message` to a rank that waits for several names, and lets the rank continue.
void feed(int peer, int rank, const std::vector<std::byte>& message) {
  NegotiatorOptions options = small_options();
  options.rank = rank;
  options.members = {0, 1, 2, 3, 4, 5, 6};
  Negotiator negotiator(options);
  Time now{};
  for (const Request& request : {allreduce_of("sum", {2, 3}), allgather_of("gather", 1)}) {
    REQUIRE(negotiator.submit(request, now).ok());
  }
  REQUIRE(negotiator.submit_group(group_of("g", 2), now).ok());
  negotiator.receive(peer, message, now);
  for (int i = 0; i < 3; ++i) {
    now += seconds(6);
    negotiator.flush(now);
    static_cast<void>(negotiator.take_outgoing());
    static_cast<void>(negotiator.take_responses());
  }
}

TEST_CASE("messages of random bytes") {
  std::mt19937 random(1);
  for (int i = 0; i < effort(20'000, 4'000); ++i) {
    std::vector<std::byte> message(random() % 60);
    for (std::byte& byte : message)
      byte = static_cast<std::byte>(random() % (i % 2 == 0 ? 256 : 4));
    if (!message.empty()) message.front() = static_cast<std::byte>(random() % 4);
    feed(random() % 2 == 0 ? 0 : 3, 1, message);
  }
}

TEST_CASE("valid messages with flipped bits, bytes cut off or added") {
  std::mt19937 random(2);
  const std::vector<Sent> sent = corpus();
  REQUIRE(sent.size() > 50);
  for (int i = 0; i < effort(30'000, 6'000); ++i) {
    Sent changed = sent[random() % sent.size()];
    std::vector<std::byte>& message = changed.message;
    for (unsigned flips = random() % 4; flips > 0; --flips) {
      message[random() % message.size()] ^= static_cast<std::byte>(1U << (random() % 8));
    }
    if (random() % 4 == 0) message.resize(random() % message.size());
    if (random() % 4 == 0) message.push_back(static_cast<std::byte>(random()));
    feed(changed.from, changed.to, message);
  }
}

TEST_CASE("lengths that lie allocate only what is there") {
  for (const int kind : {0, 1, 2}) {
    for (int skipped = 0; skipped < 12; ++skipped) {
      std::vector<std::byte> message(1 << 20, std::byte{0});
      message[0] = static_cast<std::byte>(kind);
      message[static_cast<std::size_t>(1 + skipped)] = std::byte{0xff};
      message[static_cast<std::size_t>(2 + skipped)] = std::byte{0xff};
      message[static_cast<std::size_t>(3 + skipped)] = std::byte{0x3f};
      feed(kind == 0 ? 3 : 0, 1, message);
    }
  }
}

TEST_CASE("a message that was cut closes all ranks, none waits") {
  for (unsigned seed = 0; seed < effort(150U, 75U); ++seed) {
    CAPTURE(seed);
    NegotiationSimulator simulator(size, small_options(), seed);
    unsigned countdown = seed % 75;  // fewer than any run sends
    simulator.on_send = [&](int, int, std::vector<std::byte>& message) {
      if (countdown-- == 0) message.pop_back();
    };
    exercise(simulator, 6);
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE_FALSE(simulator.negotiator(rank).closed().ok());
      REQUIRE(simulator.rank(rank).pending.empty());
    }
  }
}

bool accepted(const UpMessage& message) {
  const std::vector<std::byte> bytes = encode(message);
  Reader reader(bytes);
  reader.byte();
  return decode_up(reader, size).has_value();
}

UpMessage announcing(const std::function<void(Announcement&)>& change) {
  UpMessage message;
  Announcement& announcement = message.announcements.emplace_back();
  announcement.variants.push_back({allreduce_of("x"), {}});
  change(announcement);
  return message;
}

TEST_CASE("what makes no sense is refused when it is decoded: up the tree") {
  REQUIRE(accepted(announcing([](Announcement&) {})));
  const std::vector<std::function<void(Announcement&)>> wrong{
      [](Announcement& it) { it.variants.clear(); },
      [](Announcement& it) { it.variants[0].ranks = {1}; },
      [](Announcement& it) { it.variants.push_back(it.variants[0]); },
      [](Announcement& it) { it.variants.push_back({allreduce_of("y"), {2}}); },
      [](Announcement& it) { it.variants[0].request.shape = {-1}; },
      [](Announcement& it) { it.variants[0].request.shape = {1LL << 40, 1LL << 40}; },
      [](Announcement& it) { it.variants[0].request.op = static_cast<ReduceOp>(9); },
      [](Announcement& it) { it.first_extents = {{size, 1}}; },
      [](Announcement& it) { it.first_extents = {{-1, 1}}; },
      [](Announcement& it) { it.absent = {size}; },
      [](Announcement& it) { it.absent = {3, 2}; },
      [](Announcement& it) { it.amends = true, it.variants[0].ranks = {1}; },
      [](Announcement& it) { it.partial = true; },
      [](Announcement& it) { it.partial = true, it.variants[0].ranks = {size}; },
      [](Announcement& it) { it.partial = true, it.variants[0].ranks = {-1}; },
      [](Announcement& it) { it.partial = true, it.variants[0].ranks = {2, 2}; },
      [](Announcement& it) { it.partial = true, it.variants[0].ranks = {2}, it.age = -1; },
      [](Announcement& it) { it.partial = true, it.variants[0].ranks = {2}, it.age = 1e300; },
      [](Announcement& it) {
        it.partial = true, it.variants[0].ranks = {2};
        it.age = std::numeric_limits<double>::quiet_NaN();
      },
  };
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    CAPTURE(i);
    REQUIRE_FALSE(accepted(announcing(wrong[i])));
  }
  UpMessage message;
  message.joined = {6};
  REQUIRE(accepted(message));
  message.joined = {size};
  REQUIRE_FALSE(accepted(message));
  message.joined.clear();
  message.leaving = {-1};
  REQUIRE_FALSE(accepted(message));
}

TEST_CASE("what makes no sense is refused when it is decoded: down the tree") {
  const ResponseCache cache(4);
  const auto accepts = [&](const std::function<void(Response&)>& change) {
    Response response;
    response.request = allreduce_of("x");
    change(response);
    const std::vector<std::byte> bytes = encode({response}, cache);
    Reader reader(bytes);
    reader.byte();
    return decode_responses(reader, cache, size).has_value();
  };
  REQUIRE(accepts([](Response&) {}));
  REQUIRE_FALSE(accepts([](Response& it) { it.absent = {size}; }));
  REQUIRE_FALSE(accepts([](Response& it) { it.first_extents = {1, 2}; }));
  REQUIRE_FALSE(accepts([](Response& it) { it.request.shape = {-4}; }));
  REQUIRE_FALSE(accepts([](Response& it) { it.kind = ResponseKind::error; }));
  REQUIRE_FALSE(accepts([](Response& it) { it.kind = ResponseKind::joined; }));
  REQUIRE_FALSE(accepts([](Response& it) { it.kind = ResponseKind::joined, it.rank = size; }));
  REQUIRE_FALSE(accepts([](Response& it) { it.kind = ResponseKind::left, it.rank = 1; }));
  const auto broadcast_from = [](int root) {
    return [root](Response& it) {
      it.request.collective = Collective::broadcast;
      it.request.root = root;
    };
  };
  REQUIRE(accepts(broadcast_from(size - 1)));
  REQUIRE_FALSE(accepts(broadcast_from(size)));
}

TEST_CASE("claims about other subtrees and about numbers never sent close the set") {
  const auto closes = [](const UpMessage& message) {
    NegotiatorOptions options = small_options();
    options.members = {0, 1, 2, 3, 4, 5, 6};
    Negotiator root(options);
    root.receive(1, encode(message), Time{});
    return !root.closed().ok();
  };
  UpMessage message;
  message.joined = {3};
  REQUIRE_FALSE(closes(message));
  message.joined = {2};  // in the subtree of rank 2, not of rank 1
  REQUIRE(closes(message));
  message.joined = {3, 3, 3, 3};
  REQUIRE(closes(message));
  message.joined.clear();
  message.resolved = 1;
  REQUIRE(closes(message));
}

}  // namespace
}  // namespace rueda::test::negotiation_malformed_test
