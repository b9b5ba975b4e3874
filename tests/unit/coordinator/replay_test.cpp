// Replay driven by the test: two members in one thread, with a simulated clock.
#include "coordinator/replay.h"

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>

#include "core/strings.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::replay_test {

namespace {

using namespace std::chrono_literals;

// As in replay.cpp: the number of slots, and the world's key of the readiness table.
constexpr int slots = 2048;
constexpr std::uint64_t table_key = std::uint64_t{1} << 62;

Response response_of(const std::string& name) {
  Response response;
  response.request.name = name;
  response.request.shape = {4};
  return response;
}

class Members {
 public:
  explicit Members(Replay::Options options = {1024, 2ms, [] { return Duration(10s); }}) : hub_(2) {
    run_ranks(2, [&](int rank) {
      auto formed = HostMemory::form(*hub_.make_bootstrap(rank), soon());
      formed.status().throw_if_error();
      hosts_[static_cast<std::size_t>(rank)] = std::move(formed).value();
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      Member& member = members_[rank];
      Replay::Events events;
      events.negotiate = [&member](std::vector<Submission> submissions) {
        std::string names;
        for (const Submission& each : submissions) names += each.request.name + " ";
        member.negotiated.push_back(names);
      };
      events.execute = [&member](Replay::Batch& batch, const Contributions&) {
        std::string names;
        for (Replay::Member& each : batch) {
          names += each.response->request.name + " ";
          each.submission.reset();
        }
        member.executed.push_back(names);
      };
      events.may_be_eager = [](std::size_t) { return false; };
      member.replay = std::make_unique<Replay>(
          HostParts{{hosts_[rank], {0, 1}}, static_cast<int>(rank), 0, {0}},
          std::make_shared<ProcessSetMembers>(ProcessSetMembers{0, {0, 1}, static_cast<int>(rank)}),
          options, member.metrics, std::move(events));
    }
  }

  struct Member {
    Metrics metrics;
    std::vector<std::string> negotiated;  // names, one entry per call
    std::vector<std::string> executed;    // names, one entry per batch
    std::unique_ptr<Replay> replay;
  };
  Member& at(int rank) { return members_[static_cast<std::size_t>(rank)]; }

  // Both members learn that they have agreed on these, in these batches.
  void learn(const ResponseList& responses, const std::vector<Fusion>& batches) {
    for (Member& member : members_) {
      for (const Response& response : responses) member.replay->forget(response);
      member.replay->learn(responses, batches, [](const std::string&) { return false; });
    }
  }
  void learn(const std::string& name) { learn({response_of(name)}, {{{0}}}); }
  void forget(const std::string& name) {
    Response error = response_of(name);
    error.kind = ResponseKind::error;
    for (Member& member : members_) member.replay->forget(error);
  }

  bool take(int rank, std::vector<Request> requests, Time at_time = {}) {
    std::vector<Submission> submissions;
    for (Request& request : requests) {
      submissions.emplace_back().request = std::move(request);
      submissions.back().handle = std::make_shared<HandleState>();
      last_handle = submissions.back().handle.state();
    }
    return at(rank).replay->take(submissions, at_time, false);
  }
  bool take(int rank, const std::string& name, Time at_time = {}) {
    return take(rank, {response_of(name).request}, at_time);
  }
  void step(Time now = {}) {
    for (Member& member : members_) (void)member.replay->step(now);
  }
  // The readiness table, as every member sees it.
  [[nodiscard]] ReadinessTable table() const { return {hosts_[0]->find(0, table_key), slots, 2}; }

  std::shared_ptr<HandleState> last_handle;

 private:
  InprocHub hub_;
  std::array<std::shared_ptr<HostMemory>, 2> hosts_;
  std::array<Member, 2> members_;
};

using Names = std::vector<std::string>;

struct Deviation {
  const char* what;
  std::function<void(Request&)> apply;
};

const std::vector<Deviation> deviations{
    {"operation", [](Request& it) { it.collective = Collective::reduce_scatter; }},
    {"dtype", [](Request& it) { it.dtype = DataType::int32; }},
    {"device", [](Request& it) { it.on_gpu = true; }},
    {"wire dtype", [](Request& it) { it.wire = DataType::bfloat16; }},
    {"op", [](Request& it) { it.op = ReduceOp::max; }},
    {"root rank", [](Request& it) { it.root = 1; }},
    {"prescale factor", [](Request& it) { it.prescale = 0.5; }},
    {"postscale factor", [](Request& it) { it.postscale = 0.5; }},
    {"shape", [](Request& it) { it.shape = {5}; }},
    {"dimensions", [](Request& it) { it.shape = {4, 1}; }},
    {"splits", [](Request& it) { it.splits = {2, 2}; }},
    {"group", [](Request& it) { it.group = "g"; }},
    {"group size", [](Request& it) { it.group_size = 2; }},
    {"error", [](Request& it) { it.error = Status(ErrorCode::unsupported, "no"); }},
};

}  // namespace

TEST_CASE("what differs from what was agreed on is negotiated, in whatever it differs") {
  Members members;
  for (const Deviation& deviation : deviations) {
    CAPTURE(deviation.what);
    members.learn("x");
    REQUIRE(members.take(1, "x"));
    Request request = response_of("x").request;
    deviation.apply(request);
    REQUIRE_FALSE(members.take(0, {request}));
    members.step();
    // The other member's request is returned, too.
    REQUIRE(members.at(1).negotiated == Names{"x "});
    members.at(1).negotiated.clear();
  }
  for (const Collective collective : {Collective::allgather, Collective::alltoall}) {
    CAPTURE(name_of(collective));
    Response response = response_of("rows");
    response.request.collective = collective;
    response.request.shape = {0, 3};
    if (collective == Collective::allgather) response.first_extents = {5, 7};
    members.learn({response}, {{{0}}});
    Request request = response.request;
    request.shape = {7, 3};
    REQUIRE(members.take(1, {request}));
    // Each member's rows may change, except in an allgather, where they are agreed on.
    REQUIRE(members.take(0, {request}) == (collective == Collective::alltoall));
    members.step();
  }
  REQUIRE(members.at(0).executed == Names{"rows "});
}

TEST_CASE("members of a plan that come one by one are waited for as long as they keep coming") {
  Members members;
  const Time start{1h};
  const ResponseList three{response_of("a"), response_of("b"), response_of("c")};
  members.learn(three, {{{0, 1, 2}}});
  REQUIRE(members.take(0, "a", start));
  members.step(start + 1900us);
  CHECK(members.at(0).negotiated.empty());
  CHECK(members.at(0).replay->next_deadline() == start + 2ms);
  REQUIRE(members.take(0, "b", start + 1900us));
  members.step(start + 3800us);
  CHECK(members.at(0).negotiated.empty());
  members.step(start + 3900us);
  CHECK(members.at(0).negotiated == Names{"a ", "b "});
  CHECK_FALSE(members.at(0).replay->next_deadline());

  members.learn(three, {{{0, 1, 2}}});
  members.at(0).negotiated.clear();
  REQUIRE(members.take(0, "c", start));
  const HandleState::Waiting waiting(*members.last_handle);  // a and b are not submitted
  members.step(start);
  CHECK(members.at(0).negotiated == Names{"c "});
}

TEST_CASE("a round to which the other does not come is negotiated in the end") {
  Members members;
  const Time start{1h};
  members.learn("x");
  members.learn("y");
  REQUIRE(members.take(0, "x", start));
  REQUIRE(members.take(0, "y", start + 1s));
  CHECK(members.at(0).replay->next_deadline() == start + 10s);
  members.step(start + 10s - 1ns);
  CHECK(members.at(0).negotiated.empty());
  members.step(start + 10s);
  CHECK(members.at(0).negotiated == Names{"x "});
  REQUIRE(members.take(1, "y", start));
  members.step(start + 20s);
  CHECK(members.at(0).executed == Names{"y "});
  CHECK(members.at(1).executed == Names{"y "});
}

TEST_CASE("what goes back to be negotiated goes in its groups") {
  Members members;
  ResponseList responses;
  for (const char* name : {"g.0", "h.0", "alone", "g.1", "h.1"}) {
    responses.push_back(response_of(name));
    if (name[1] == '.') responses.back().request.group = name[0];
    if (name[1] == '.') responses.back().request.group_size = 2;
  }
  members.learn(responses, {{{0, 1, 2, 3, 4}}});
  const auto group = [&](std::size_t first, std::size_t second) {
    return std::vector<Request>{responses[first].request, responses[second].request};
  };
  REQUIRE(members.take(0, group(0, 3)));
  REQUIRE(members.take(0, {responses[2].request}));
  REQUIRE(members.take(0, group(1, 4)));
  members.at(1).replay->suspend();
  members.step();
  CHECK(members.at(0).negotiated == Names{"g.0 g.1 ", "h.0 h.1 ", "alone "});
}

TEST_CASE("a slot rests before it gets another plan") {
  Members members;
  const auto forget_and_learn = [&](int count) {
    for (int i = 0; i < count; ++i) {
      members.forget("x");
      members.learn("x");
    }
  };
  members.learn("x");
  REQUIRE(members.take(0, "x"));
  // A member may reach the first plan only now: the readiness table keeps it until its slot is
  // reused.
  forget_and_learn(slots / 2);
  REQUIRE(members.take(0, "x"));
  CHECK(members.table().look({0, 1}, 0) == ReadinessTable::State::off);
}

TEST_CASE("slots come back, however many plans there have been") {
  Members members;
  for (int round = 0; round < 2 * slots + 500; ++round) {
    members.learn("x");
    if (round % 2 == 0) members.forget("x");
  }
  CHECK(members.take(0, "x"));
  CHECK(members.take(1, "x"));
  members.step();
  CHECK(members.at(0).executed == Names{"x "});
  CHECK(members.at(1).executed == Names{"x "});
  // The last of about 4600 plans has one of the slots.
  int found = 0;
  for (int slot = 0; slot < slots; ++slot) {
    const auto number = static_cast<std::uint64_t>(2 * slots + 500);
    found += members.table().look({slot, number}, 0) == ReadinessTable::State::decided ? 1 : 0;
  }
  CHECK(found == 1);
}

}  // namespace rueda::test::replay_test
