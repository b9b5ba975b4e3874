// Stalls: who is told what and when, and that a retry works even if messages cross the error.
#include <set>
#include <string>
#include <vector>

#include "effort.h"
#include "ranks/negotiation_simulator.h"

namespace rueda::test::negotiation_stall_test {
namespace {

NegotiatorOptions options_of(double warning, double error, unsigned seed = 1) {
  NegotiatorOptions options;
  options.stall_warning = seconds(warning);
  options.stall_error = [error] { return seconds(error); };
  options.fanout = 1 + static_cast<int>(seed % 4);
  return options;
}

void pass(NegotiationSimulator& simulator, double duration) {
  constexpr double tick = 0.125;
  for (; duration > 0; duration -= tick) {
    simulator.advance(tick);
    simulator.settle();
  }
}

std::set<int> random_ranks(NegotiationSimulator& simulator, int from, int to) {
  std::set<int> ranks;
  const int count = from + simulator.below(to - from + 1);
  while (static_cast<int>(ranks.size()) < count) ranks.insert(simulator.below(simulator.size()));
  return ranks;
}

std::string describe(const std::set<int>& ranks) {
  return describe_ranks({ranks.begin(), ranks.end()});
}

TEST_CASE("a warning names who has submitted and who has not, in the rhythm of the setting") {
  for (unsigned seed = 0; seed < effort(60U, 16U); ++seed) {
    const int size = 2 + static_cast<int>(seed % 16);
    CAPTURE(seed, size);
    NegotiationSimulator simulator(size, options_of(10, 0, seed), seed);
    const std::set<int> late = random_ranks(simulator, 1, size - 1);
    std::set<int> prompt;
    for (int rank = 0; rank < size; ++rank) {
      if (late.contains(rank)) continue;
      prompt.insert(rank);
      REQUIRE(simulator.submit(rank, allreduce_of("x")).ok());
    }
    simulator.settle();
    pass(simulator, 9);
    REQUIRE(simulator.rank(0).warnings.empty());
    pass(simulator, 26);  // until 35; warns at 10, 20 and 30
    REQUIRE(simulator.rank(0).warnings.size() == 3);
    simulator.require_agreement(false);
    for (const Response& warning : simulator.rank(0).warnings) {
      const std::string text = warning.status.to_string();
      REQUIRE(text.find("submitted by " + describe(prompt) + ", missing on " + describe(late)) !=
              std::string::npos);
      REQUIRE(warning.status.peer() == *late.begin());
    }
    for (const int rank : late) REQUIRE(simulator.submit(rank, allreduce_of("x")).ok());
    simulator.settle();
    simulator.require_agreement();
    REQUIRE(simulator.rank(0).answers.at("x").front().kind == ResponseKind::execute);
  }
}

TEST_CASE(
    "who asks for a longer timeout than the setting gets it, also for what is waited for already") {
  for (const bool warns : {false, true}) {
    NegotiatorOptions options = options_of(warns ? 10 : 0, 4);
    Duration timeout = seconds(4);
    options.stall_error = [&] { return timeout; };
    NegotiationSimulator simulator(3, options, 1);
    REQUIRE(simulator.submit(1, allreduce_of("x")).ok());
    simulator.settle();
    pass(simulator, 2);
    timeout = seconds(30);
    pass(simulator, 27);  // until 29
    REQUIRE(simulator.rank(0).warnings.size() == (warns ? 2 : 0));
    REQUIRE(!simulator.rank(1).answers.contains("x"));
    pass(simulator, 2);
    REQUIRE(simulator.rank(1).answers.at("x").front().status.code() == ErrorCode::stalled);
  }
}

TEST_CASE("a shorter timeout does not apply to what this rank has submitted before") {
  Duration timeout = GENERATE(seconds(100), seconds(0));
  NegotiatorOptions options = options_of(0, 0);
  options.members = {0, 1, 2};
  options.stall_error = [&] { return timeout; };
  Negotiator root(options);
  REQUIRE(root.submit(allreduce_of("x"), Time{}).ok());
  root.flush(Time{});
  const bool is_limited = timeout > Duration::zero();
  timeout = seconds(3);
  REQUIRE(root.submit(allreduce_of("y"), Time{} + seconds(1)).ok());
  root.flush(Time{} + seconds(4));
  const std::vector<ResponseList> lists = root.take_responses();
  REQUIRE(lists.size() == 1);
  REQUIRE(lists.front().size() == 1);
  REQUIRE(lists.front().front().request.name == "y");
  root.flush(Time{} + seconds(99));
  REQUIRE(root.take_responses().empty());
  root.flush(Time{} + seconds(100));
  REQUIRE(root.take_responses().size() == (is_limited ? 1 : 0));
}

TEST_CASE("a shorter timeout applies to what others have submitted already") {
  Duration timeout = seconds(100);
  NegotiatorOptions options = options_of(0, 0);
  options.members = {0, 1, 2};
  options.stall_error = [&] { return timeout; };
  Negotiator root(options);
  options.rank = 1;
  Negotiator other(options);
  REQUIRE(other.submit(allreduce_of("x"), Time{}).ok());
  other.flush(Time{});
  root.receive(1, other.take_outgoing().front().message, Time{});
  root.flush(Time{});
  REQUIRE(root.next_deadline() == Time{} + seconds(100));
  timeout = seconds(3);
  root.flush(Time{} + seconds(1));
  REQUIRE(root.take_responses().empty());
  REQUIRE(root.next_deadline() == Time{} + seconds(3));
  root.flush(Time{} + seconds(3));
  const std::vector<ResponseList> lists = root.take_responses();
  REQUIRE(lists.size() == 1);
  REQUIRE(lists.front().front().status.code() == ErrorCode::stalled);
}

// The root of three ranks, which submits a tensor at time 0.
struct WaitingRoot : Negotiator {
  WaitingRoot(double warning, double error) : Negotiator(options(warning, error)) {
    REQUIRE(submit(allreduce_of("x"), Time{}).ok());
    flush(Time{});
  }
  static NegotiatorOptions options(double warning, double error) {
    NegotiatorOptions options = options_of(warning, error);
    options.members = {0, 1, 2};
    options.asks_whereabouts = true;
    return options;
  }
};

std::string report_of(Negotiator& root) {
  const std::vector<ResponseList> lists = root.take_responses();
  REQUIRE(lists.size() == 1);
  return lists.front().front().status.to_string();
}

TEST_CASE("a report says where those are that are missing") {
  WaitingRoot root(10, 0);
  const Time due = Time{} + seconds(10);
  root.flush(due);
  REQUIRE(root.take_questions() == std::vector<int>{1, 2});
  REQUIRE(root.take_responses().empty());  // waits for the answers
  root.hear_whereabouts(2, "at b.py:2 in f", due);
  root.flush(due);
  REQUIRE(root.take_responses().empty());
  root.hear_whereabouts(1, "at a.py:1 in f", due);
  REQUIRE(root.next_deadline() == due);
  root.flush(due);
  REQUIRE(report_of(root).ends_with(
      "missing on ranks 1 and 2; rank 1 is at a.py:1 in f; rank 2 is at b.py:2 in f"));
  // The next report asks again.
  root.flush(Time{} + seconds(20));
  REQUIRE(root.take_questions() == std::vector<int>{1, 2});
}

TEST_CASE("a report waits a second for answers, and no longer") {
  WaitingRoot root(0, 10);
  const Time due = Time{} + seconds(10);
  root.flush(due);
  root.hear_whereabouts(1, "at a.py:1 in f", due);
  REQUIRE(root.next_deadline() == due + seconds(1));
  root.flush(due + seconds(0.9));
  REQUIRE(root.take_responses().empty());
  root.flush(due + seconds(1));
  const std::string text = report_of(root);
  REQUIRE(text.find("rank 1 is at a.py:1 in f; rank 2 is silent") != std::string::npos);
}

TEST_CASE("a report keeps what was said for it where another one asks the same ranks anew") {
  WaitingRoot root(10, 0);
  // Submitted a second later but checked first: its report is due when that of "x" stops waiting.
  REQUIRE(root.submit(allreduce_of("a"), Time{} + seconds(1)).ok());
  const Time due = Time{} + seconds(10);
  root.flush(due);
  root.hear_whereabouts(1, "at a.py:1 in f", due);
  root.flush(due + seconds(1));
  const std::string text = report_of(root);
  REQUIRE(text.find("rank 1 is at a.py:1 in f; rank 2 is silent") != std::string::npos);
  REQUIRE(root.take_questions() == std::vector<int>{1, 2, 1, 2});
}

TEST_CASE(
    "a report that waits for answers is not brought forward by ranks that have waited longer") {
  NegotiatorOptions options = options_of(10, 0);
  options.members = {0, 1, 2, 3, 4, 5, 6};
  options.asks_whereabouts = true;
  Negotiator root(options);
  options.rank = 1;  // the parent of ranks 5 and 6
  Negotiator inner(options);
  REQUIRE(root.submit(allreduce_of("x"), Time{}).ok());
  REQUIRE(inner.submit(allreduce_of("x"), Time{} - seconds(0.5)).ok());
  const Time due = Time{} + seconds(10);
  root.flush(due);
  REQUIRE_FALSE(root.take_questions().empty());
  inner.flush(due);
  const auto messages = inner.take_outgoing();
  REQUIRE_FALSE(messages.empty());
  for (const Negotiator::Outgoing& message : messages) root.receive(1, message.message, due);
  root.flush(due);
  REQUIRE(root.take_responses().empty());
  root.flush(due + seconds(1));
  REQUIRE(report_of(root).find("silent") != std::string::npos);
}

TEST_CASE("ranks that cannot tell where they are delay no report, and are not mentioned") {
  WaitingRoot root(10, 0);
  const Time due = Time{} + seconds(10);
  root.flush(due);
  root.hear_whereabouts(1, "", due);
  root.hear_whereabouts(2, "", due);
  root.hear_whereabouts(2, "at last", due);  // was not asked again
  root.flush(due);
  REQUIRE(report_of(root).ends_with("missing on ranks 1 and 2"));
}

TEST_CASE("joined ranks are not missing") {
  NegotiationSimulator simulator(6, options_of(4, 0), 1);
  simulator.join(3);
  REQUIRE(simulator.submit(5, allreduce_of("x")).ok());
  simulator.settle();
  pass(simulator, 5);
  const std::string text = simulator.rank(0).warnings.at(0).status.to_string();
  REQUIRE(text.find("submitted by rank 5, missing on ranks 0-2 and 4") != std::string::npos);
}

TEST_CASE("what a rank refuses is called what the others have called, or refused") {
  for (const int partner : {-1, 0, 1, 4}) {
    CAPTURE(partner);
    NegotiationSimulator simulator(6, options_of(4, 0), 1);
    Request refused = allreduce_of("x");
    refused.error = Status(ErrorCode::invalid_argument, "out of paper");
    REQUIRE(simulator.submit(5, refused).ok());
    if (partner >= 0) REQUIRE(simulator.submit(partner, allgather_of("x", 2)).ok());
    simulator.settle();
    pass(simulator, 5);
    const std::string text = simulator.rank(0).warnings.at(0).status.to_string();
    const std::string kind = partner >= 0 ? "allgather" : "refused: out of paper";
    REQUIRE(text.find("'x' (" + kind + ") has waited for") != std::string::npos);
  }
}

std::vector<Request> requests_of(unsigned seed) {
  if (seed % 3 == 0) return group_of("g", 3);
  if (seed % 3 == 1) return {allgather_of("g.0", 2)};
  return {allreduce_of("g.0")};
}

// All ranks can then reuse the same names, each at its own pace.
void require_retry(NegotiationSimulator& simulator, const std::vector<Request>& requests) {
  for (int round = 0; round < 3; ++round) {
    for (int rank = 0; rank < simulator.size(); ++rank) {
      REQUIRE(simulator.submit(rank, requests).ok());
      simulator.steps(simulator.below(6));
    }
    simulator.settle();
    simulator.require_agreement();
    for (int rank = 0; rank < simulator.size(); ++rank) {
      for (const Request& request : requests) {
        REQUIRE(simulator.rank(rank).answers.at(request.name).back().kind == ResponseKind::execute);
      }
    }
  }
}

TEST_CASE("after the limit all who submitted fail, latecomers fail once, and a retry works") {
  const double warning = GENERATE(0.0, 4.0, 40.0);
  for (unsigned seed = 0; seed < effort(60U, 16U); ++seed) {
    const int size = 2 + static_cast<int>(seed % 16);
    CAPTURE(seed, size, warning);
    NegotiationSimulator simulator(size, options_of(warning, 10, seed), seed);
    const std::vector<Request> requests = requests_of(seed);
    if (seed % 2 == 0) require_retry(simulator, requests);  // cached
    const std::set<int> late = random_ranks(simulator, 1, size - 1);
    for (int rank = 0; rank < size; ++rank) {
      if (!late.contains(rank)) REQUIRE(simulator.submit(rank, requests).ok());
    }
    simulator.settle();
    pass(simulator, 9);
    simulator.require_agreement(false);
    pass(simulator, 2);
    simulator.require_agreement();
    for (int rank = 0; rank < size; ++rank) {
      if (late.contains(rank)) {
        const Status missed = simulator.submit(rank, requests);
        REQUIRE(missed.code() == ErrorCode::stalled);
        REQUIRE(missed.to_string().find("missing on " + describe(late)) != std::string::npos);
        continue;
      }
      for (const Request& request : requests) {
        REQUIRE(simulator.rank(rank).answers.at(request.name).back().status.code() ==
                ErrorCode::stalled);
      }
    }
    require_retry(simulator, requests);
  }
}

// Latecomers submit while the error may be in flight: each gets exactly one answer to its first
// submission and retries at once, so that old and new messages of one name meet everywhere in the
// tree.
TEST_CASE("an error that crosses announcements at any depth answers each submission once") {
  int crossed = 0;
  for (unsigned seed = 0; seed < effort(1500U, 160U); ++seed) {
    const int size = 2 + static_cast<int>(seed % 16);
    CAPTURE(seed, size);
    NegotiatorOptions options = options_of(seed % 2 == 0 ? 0 : 4, 10, seed);
    options.cache_capacity = seed % 5 == 0 ? 1 : 1024;
    NegotiationSimulator simulator(size, options, seed);
    const std::vector<Request> requests = requests_of(seed);
    if (seed % 4 < 2) require_retry(simulator, requests);
    const auto answers_of = [&](int rank) -> std::vector<Response>& {
      return simulator.rank(rank).answers[requests.front().name];
    };
    const std::size_t before = answers_of(0).size();
    const std::set<int> late = random_ranks(simulator, 1, size);
    for (int rank = 0; rank < size; ++rank) {
      if (!late.contains(rank)) REQUIRE(simulator.submit(rank, requests).ok());
    }
    simulator.steps(simulator.below(40));
    simulator.advance(9.9);
    simulator.settle();
    simulator.advance(0.2);
    simulator.steps(simulator.below(size * 3));
    std::set<int> refused;
    for (const int rank : late) {
      if (!simulator.submit(rank, requests).ok()) refused.insert(rank);
      simulator.steps(simulator.below(4));
    }
    // Each rank starts its second round once its first is answered.
    std::set<int> waiting;
    for (int rank = 0; rank < size; ++rank) waiting.insert(rank);
    for (int round = 0; !waiting.empty() && round < 10000; ++round) {
      const int rank = simulator.below(size);
      if (waiting.contains(rank) && (refused.contains(rank) || answers_of(rank).size() > before)) {
        REQUIRE(simulator.submit(rank, requests).ok());
        waiting.erase(rank);
      }
      simulator.steps(1);
    }
    simulator.settle();
    REQUIRE(waiting.empty());
    simulator.require_agreement();
    const bool failed = answers_of(*late.begin()).empty() || !refused.empty() ||
                        answers_of(0)[before].kind == ResponseKind::error;
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<Response>& answers = answers_of(rank);
      const bool answered_twice = answers.size() == before + 2;
      REQUIRE(answered_twice != refused.contains(rank));
      if (answered_twice) REQUIRE((answers[before].kind == ResponseKind::error) == failed);
      REQUIRE(answers.back().kind == ResponseKind::execute);
    }
    crossed += failed && refused.size() < late.size() ? 1 : 0;
    require_retry(simulator, requests);
  }
  REQUIRE(crossed > effort(200, 10));
}

TEST_CASE("nothing wakes a rank that waits for nothing, and no deadline stays in the past") {
  NegotiationSimulator simulator(5, options_of(2, 9), 1);
  for (int rank = 0; rank < 5; ++rank) REQUIRE_FALSE(simulator.negotiator(rank).next_deadline());
  REQUIRE(simulator.submit(4, allreduce_of("x")).ok());
  Time now{};
  for (int i = 0; i < 60; ++i) {
    simulator.advance(0.25);
    now += seconds(0.25);
    simulator.settle();
    for (int rank = 0; rank < 5; ++rank) {
      const auto deadline = simulator.negotiator(rank).next_deadline();
      REQUIRE((!deadline || *deadline > now));
    }
  }
  simulator.require_agreement();
}

}  // namespace
}  // namespace rueda::test::negotiation_stall_test
