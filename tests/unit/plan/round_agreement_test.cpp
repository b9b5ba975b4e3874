// Any number of hosts without threads: messages wait in one queue per ordered pair of hosts, and a
// seeded generator chooses the next event.
#include "plan/round_agreement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "core/strings.h"
#include "effort.h"
#include "unit/bytes.h"

namespace rueda::test::round_agreement_test {

namespace {

using Decision = RoundAgreement::Decision;

class Hosts {
 public:
  Hosts(int size, unsigned seed, const RoundAgreement::Combine& combine = {})
      : random_(seed), decided_(static_cast<std::size_t>(size)) {
    for (int host = 0; host < size; ++host) nodes_.emplace_back(host, size, combine);
  }

  [[nodiscard]] int size() const { return static_cast<int>(nodes_.size()); }
  RoundAgreement& at(int host) { return nodes_[static_cast<std::size_t>(host)]; }
  std::vector<Decision>& decided(int host) { return decided_[static_cast<std::size_t>(host)]; }
  std::size_t below(std::size_t limit) { return random_() % limit; }

  void flush(int host) {
    at(host).flush();
    for (RoundAgreement::Outgoing& outgoing : at(host).take_outgoing()) {
      ++sent_;
      auto& queue = queues_[{host, outgoing.host}];
      queue.push_back(std::move(outgoing.message));
    }
    take(host);
  }
  void take(int host) {
    for (const Decision& decision : at(host).take_decisions()) decided(host).push_back(decision);
  }
  // Delivers the oldest message of a random pair; returns false if there is none.
  bool deliver() {
    if (queues_.empty()) return false;
    auto queue = queues_.begin();
    std::advance(queue, static_cast<std::ptrdiff_t>(below(queues_.size())));
    const auto [from, to] = queue->first;
    const std::vector<std::byte> message = std::move(queue->second.front());
    queue->second.pop_front();
    if (queue->second.empty()) queues_.erase(queue);
    REQUIRE(at(to).receive(from, message));
    return true;
  }
  void settle() {
    do {
      for (int host = 0; host < size(); ++host) flush(host);
    } while (deliver());
  }
  [[nodiscard]] int sent() const { return sent_; }

 private:
  std::mt19937 random_;
  std::deque<RoundAgreement> nodes_;
  std::vector<std::vector<Decision>> decided_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> queues_;
  int sent_ = 0;
};

// One host's view of a plan.
struct Known {
  std::uint64_t rounds = 0;  // executed
  bool ready = false;        // announced, not yet decided
  bool cancelled = false;    // by this host or another
};

}  // namespace

TEST_CASE("what all hosts are ready for goes, with one message up and one down") {
  Hosts hosts(2, 1);
  for (int round = 0; round < 3; ++round) {
    for (const std::uint64_t plan : {7, 5}) hosts.at(0).ready(plan);
    hosts.flush(0);
    CHECK(hosts.decided(0).empty());
    for (const std::uint64_t plan : {5, 7}) hosts.at(1).ready(plan);
    hosts.settle();
    const std::vector<Decision> both{{5, true, true}, {7, true}};
    CHECK(std::exchange(hosts.decided(0), {}) == both);
    CHECK(std::exchange(hosts.decided(1), {}) == both);
  }
  CHECK(hosts.sent() == 6);
}

TEST_CASE("what becomes ready on busy hosts goes together, once they are not") {
  Hosts hosts(2, 1);
  const int busy = GENERATE(0, 1);
  hosts.at(busy).set_load({.is_busy = true});
  for (const std::uint64_t plan : {1, 2, 3}) {
    hosts.at(0).ready(plan);
    hosts.at(1).ready(plan);
    hosts.settle();
    CHECK(hosts.decided(1).empty());
  }
  const bool cancels = GENERATE(true, false);  // a busy host still sends cancellations
  if (cancels) hosts.at(busy).cancel(9);
  hosts.at(busy).set_load({.is_busy = cancels});
  hosts.settle();
  std::vector<Decision> all{{1, true, true}, {2, true, true}, {3, true}};
  if (cancels) all.push_back({9, false});
  CHECK(hosts.decided(0) == all);
  CHECK(hosts.decided(1) == all);
}

TEST_CASE("of what goes at once the most urgent is first, and none overtakes a cancellation") {
  Hosts hosts(2, 1);
  hosts.at(0).set_load({.is_busy = true});
  const auto ready = [&](std::uint64_t plan, std::int32_t priority) {
    for (int host = 0; host < 2; ++host) hosts.at(host).ready(plan, {}, {.priority = priority});
    hosts.settle();
  };
  ready(1, -3);
  ready(2, 0);
  ready(3, 4);
  CHECK(hosts.decided(1).empty());
  hosts.at(0).cancel(9);
  hosts.settle();
  const std::vector<Decision> all{{3, true, true}, {2, true, true}, {1, true}, {9, false}};
  CHECK(hosts.decided(0) == all);
  CHECK(hosts.decided(1) == all);
}

TEST_CASE("what is more urgent than what is under way, and what is large, is not held back") {
  Hosts hosts(2, 1);
  const int busy = GENERATE(0, 1);
  hosts.at(busy).set_load({.is_busy = true, .most_urgent = 2, .large = 100});
  const auto ready = [&](std::uint64_t plan, Urgency urgency) {
    for (int host = 0; host < 2; ++host) hosts.at(host).ready(plan, {}, urgency);
    hosts.settle();
  };
  ready(1, {.priority = 2, .bytes = 99});
  CHECK(hosts.decided(1).empty());
  ready(2, {.priority = 3});
  ready(3, {.priority = 1, .bytes = 100});
  const std::vector<Decision> first{{2, true}, {3, true}};
  CHECK(std::exchange(hosts.decided(0), {}) == first);
  CHECK(std::exchange(hosts.decided(1), {}) == first);
  hosts.at(busy).set_load({});
  hosts.settle();
  CHECK(hosts.decided(1) == std::vector<Decision>{{1, true}});
}

TEST_CASE("what all hosts send along comes back combined, and nothing where one sends nothing") {
  const int size = GENERATE(2, 3, 6, 22);
  const int silent = GENERATE(-1, 0, 1);
  // Records as text what is combined in which order.
  const auto combine = [](std::uint64_t plan, std::vector<RoundAgreement::Bytes> sent,
                          bool is_result) {
    CHECK(plan == 7);
    std::byte total{};
    for (const auto& one : sent) {
      REQUIRE(one.size() == 2);
      CHECK(one.back() == std::byte{0});
      total = std::byte(static_cast<int>(total) + static_cast<int>(one.front()));
    }
    return RoundAgreement::Bytes{total, std::byte{is_result}};
  };
  Hosts hosts(size, 5, combine);
  for (int round = 0; round < 3; ++round) {
    int total = 0;
    for (int host = 0; host < size; ++host) {
      total += host + round;
      const RoundAgreement::Bytes own{std::byte(host + round), std::byte{0}};
      hosts.at(host).ready(7, host == silent ? RoundAgreement::Bytes() : own);
      hosts.flush(host);
    }
    hosts.settle();
    const RoundAgreement::Bytes result{std::byte(total), std::byte{1}};
    for (int host = 0; host < size; ++host) {
      const auto decided = std::exchange(hosts.decided(host), {});
      REQUIRE(decided.size() == 1);
      CHECK(decided.front().goes);
      CHECK(decided.front().result == (silent < 0 ? result : RoundAgreement::Bytes()));
    }
  }
}

TEST_CASE("no more is sent along than hosts had better exchange together") {
  constexpr std::size_t length = 4096;
  const auto combine = [](std::uint64_t, std::vector<RoundAgreement::Bytes> sent, bool) {
    return sent.front();
  };
  Hosts hosts(3, 1, combine);
  for (int host = 0; host < 3; ++host) {
    for (std::uint64_t plan = 0; plan < 9; ++plan) {
      hosts.at(host).ready(plan, RoundAgreement::Bytes(length));
    }
  }
  hosts.settle();
  for (int host = 0; host < 3; ++host) {
    const auto& decided = hosts.decided(host);
    REQUIRE(decided.size() == 9);
    for (std::size_t i = 0; i < 9; ++i) CHECK(decided[i].result.size() == (i < 4 ? length : 0));
  }
}

TEST_CASE("what one host cancels goes on no host, however many are ready") {
  Hosts hosts(7, 1);
  for (int host = 0; host < 6; ++host) hosts.at(host).ready(3);
  hosts.settle();
  hosts.at(6).cancel(3);
  hosts.settle();
  for (int host = 0; host < 7; ++host) {
    CHECK(hosts.decided(host) == std::vector<Decision>{{3, false}});
  }
  CHECK(hosts.at(0).kept() == 0);
}

TEST_CASE("a cancellation that comes too late holds from the next round on") {
  Hosts hosts(2, 1);
  hosts.at(0).ready(3);
  hosts.at(1).ready(3);
  hosts.flush(1);
  hosts.at(1).cancel(3);  // before it knows that all are ready
  hosts.settle();
  const std::vector<Decision> late{{3, true}, {3, false}};
  CHECK(hosts.decided(0) == late);
  CHECK(hosts.decided(1) == late);
}

TEST_CASE("after the end nothing goes") {
  Hosts hosts(6, 1);
  for (int host = 0; host < 5; ++host) hosts.at(host).ready(3);
  hosts.at(5).end();  // a leaf of a subtree
  hosts.settle();
  for (int host = 0; host < 6; ++host) CHECK(hosts.at(host).has_ended());
  hosts.at(5).ready(3);
  hosts.settle();
  for (int host = 0; host < 6; ++host) CHECK(hosts.decided(host).empty());
}

// Each host runs the rounds of each plan in its own order and cancels some plans, even while a
// round it is ready for is undecided. Every host cancels each plan or hears of its end.
TEST_CASE("all hosts see the same decisions, and no round goes to which one was not ready") {
  const int size = GENERATE(2, 3, 6, 23);
  const auto seed = static_cast<unsigned>(GENERATE(range(1, effort(30, 6))));
  CAPTURE(size, seed);
  constexpr std::size_t plans = 12;
  Hosts hosts(size, seed);
  std::vector<std::vector<Known>> known(static_cast<std::size_t>(size), std::vector<Known>(plans));
  std::vector<std::size_t> read(static_cast<std::size_t>(size), 0);

  const auto hear = [&](int host) {
    hosts.take(host);
    std::size_t& position = read[static_cast<std::size_t>(host)];
    for (; position < hosts.decided(host).size(); ++position) {
      const Decision decision = hosts.decided(host)[position];
      Known& plan = known[static_cast<std::size_t>(host)][decision.plan];
      if (decision.goes) {
        REQUIRE(plan.ready);
        ++plan.rounds;
      } else {
        plan.cancelled = true;
      }
      plan.ready = false;
    }
  };
  const auto act = [&](int host) {
    const std::size_t number = hosts.below(plans);
    Known& plan = known[static_cast<std::size_t>(host)][number];
    if (plan.cancelled) return;
    if (hosts.below(40 * static_cast<std::size_t>(size)) == 0) {
      hosts.at(host).cancel(number);
      plan.cancelled = true;
    } else if (!plan.ready) {
      hosts.at(host).ready(number);
      plan.ready = true;
    }
  };
  for (int step = 0; step < 3000 * size; ++step) {
    const auto host = static_cast<int>(hosts.below(static_cast<std::size_t>(size)));
    switch (hosts.below(3)) {
      case 0:
        hear(host);
        hosts.at(host).set_load({.is_busy = hosts.below(4) == 0});
        act(host);
        break;
      case 1: hosts.flush(host); break;
      default: hosts.deliver(); break;
    }
    hear(host);
  }
  // Some host may not be ready for some plan; host 0 cancels all plans, so that nothing stays
  // undecided.
  for (std::size_t number = 0; number < plans; ++number) {
    if (!std::exchange(known[0][number].cancelled, true)) hosts.at(0).cancel(number);
  }
  for (int host = 0; host < size; ++host) hosts.at(host).set_load({.is_busy = false});
  hosts.settle();
  std::uint64_t rounds = 0;
  for (int host = 0; host < size; ++host) {
    hear(host);
    REQUIRE(hosts.decided(host) == hosts.decided(0));
    for (std::size_t number = 0; number < plans; ++number) {
      const Known& plan = known[static_cast<std::size_t>(host)][number];
      REQUIRE(plan.cancelled);
      REQUIRE_FALSE(plan.ready);
      rounds += plan.rounds;
    }
    // Late messages are not taken for new ones.
    REQUIRE(hosts.at(host).kept() == 0);
  }
  CHECK(rounds > 0);
}

TEST_CASE("a message that no host sends is refused") {
  RoundAgreement root(0, 6);
  RoundAgreement inner(1, 6);
  const auto up = [](auto... rest) { return bytes({3, rest...}); };
  const auto down = [](auto... rest) { return bytes({4, rest...}); };
  CHECK(root.receive(1, up(0, 0, 1, 9, 0, 0)));
  CHECK(root.receive(1, up(0, 0, 1, 8, 2, 77, 77, 0)));
  CHECK(inner.receive(5, up(0, 0, 0, 0)));
  CHECK(inner.receive(0, down(0, 1, 8, 0)));
  CHECK_FALSE(inner.receive(0, down(0, 1, 8, 1, 77)));     // a result for a cancelled plan
  CHECK_FALSE(root.receive(1, up(0, 0, 1, 9, 5, 77, 0)));  // shorter than announced
  CHECK_FALSE(inner.receive(0, down(0, 1, 8, 2, 77)));
  CHECK_FALSE(root.receive(5, up(0, 0, 0, 0)));     // not a child
  CHECK_FALSE(inner.receive(2, down(0, 0)));        // not its parent
  CHECK_FALSE(root.receive(1, down(0, 0)));         // from a child
  CHECK_FALSE(inner.receive(0, up(0, 0, 0, 0)));    // from its parent
  CHECK_FALSE(root.receive(1, up(1, 0, 0, 0)));     // knows more decisions than exist
  CHECK_FALSE(root.receive(1, up(0, 2, 0, 0)));     // end flag is not 0 or 1
  CHECK_FALSE(root.receive(1, up(0, 0, 2, 9)));     // too short
  CHECK_FALSE(root.receive(1, up(0, 0, 0, 0, 0)));  // too long
  CHECK_FALSE(inner.receive(0, down(0, 3, 8)));     // too short
  CHECK_FALSE(inner.receive(0, down(2, 0)));        // end flag is not 0 or 1
  CHECK_FALSE(inner.receive(0, down(0, 0, 0)));     // too long
  CHECK_FALSE(inner.receive(0, bytes({})));
}

// Received data goes into buffers sized like what this host has sent, and is combined with that.
TEST_CASE("nothing is combined, or goes, but what this host has said it is ready for") {
  std::size_t combined = 0;
  const auto combine = [&](std::uint64_t, const std::vector<RoundAgreement::Bytes>& sent, bool) {
    for (const auto& one : sent) REQUIRE(one.size() == 2);
    ++combined;
    return sent.front();
  };
  const auto up = [](auto... rest) { return bytes({3, 0, 0, rest...}); };
  const auto down = [](auto... rest) { return bytes({4, 0, rest...}); };
  SECTION("a host that says so twice counts once") {
    RoundAgreement root(0, 3, combine);
    CHECK(root.receive(1, up(1, 9, 2, 7, 7, 0)));
    CHECK_FALSE(root.receive(1, up(1, 9, 2, 7, 7, 0)));
    CHECK(root.receive(2, up(1, 9, 2, 7, 7, 0)));
    CHECK(combined == 0);
  }
  SECTION("what is longer or shorter is not combined") {
    RoundAgreement root(0, 2, combine);
    const int length = GENERATE(0, 1, 2, 3);
    root.ready(9, bytes({1, 2}));
    std::vector<std::byte> message = bytes({3, 0, 0, 1, 9, length});
    message.resize(message.size() + static_cast<std::size_t>(length) + 1);
    CHECK(root.receive(1, message));
    root.flush();
    CHECK(combined == (length == 2 ? 1 : 0));
    CHECK(root.take_decisions().size() == 1);
  }
  SECTION("a result that is longer or shorter is none") {
    const int length = GENERATE(0, 1, 2, 3);
    RoundAgreement leaf(1, 2, combine);
    leaf.ready(9, bytes({1, 2}));
    leaf.flush();
    std::vector<std::byte> message = bytes({4, 0, 1, 19, length});
    message.resize(message.size() + static_cast<std::size_t>(length));
    CHECK(leaf.receive(0, message) == (length == 0 || length == 2));
  }
  SECTION("what this host, or one beneath it, is not ready for does not go") {
    RoundAgreement inner(1, 6, combine);
    CHECK_FALSE(inner.receive(0, down(1, 19, 0)));
    inner.ready(9, bytes({1, 2}));
    CHECK_FALSE(inner.receive(0, down(1, 19, 0)));
    CHECK(inner.receive(5, up(1, 9, 2, 7, 7, 0)));
    CHECK(inner.receive(0, down(1, 19, 0)));
    CHECK_FALSE(inner.receive(0, down(1, 19, 0)));
  }
  SECTION("what is cancelled does not go with the same message") {
    RoundAgreement leaf(1, 2, combine);
    leaf.ready(9, bytes({1, 2}));
    leaf.flush();
    CHECK_FALSE(leaf.receive(0, down(2, 18, 0, 19, 2, 7, 7)));
  }
}

}  // namespace rueda::test::round_agreement_test
