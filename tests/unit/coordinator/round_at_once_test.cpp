// The data that two members send along with rounds: both in one thread, in shared memory.
#include "coordinator/round_at_once.h"

#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <random>

#include "core/strings.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::round_at_once_test {

namespace {

constexpr int ranks = 2;
using Is = RoundAtOnce::Is;

Response allreduce_of(const std::string& name, std::int64_t count) {
  Response response;
  response.request.name = name;
  response.request.shape = {count};
  return response;
}

struct Member {
  Member(const std::shared_ptr<HostMemory>& host, int rank, std::size_t limit)
      : described{0, {0, 1}, rank},
        memory(HostParts{{host, {0, 1}}, rank, 0, {0}}, 0, 16),
        contributions(memory, described, [limit](std::size_t bytes) { return bytes <= limit; }),
        at_once(memory, plans, open, contributions, described, metrics) {}

  ReplayPlan& learn(const ResponseList& responses, const std::vector<Fusion>& batches) {
    if (memory.open()) plans.open(memory.slots());
    std::vector<const Fusion*> together;
    for (const Fusion& batch : batches) together.push_back(&batch);
    ReplayPlan& plan = plans.add(responses, together);
    contributions.prepare(plan);
    at_once.prepare(plan);
    return plan;
  }

  ProcessSetMembers described;
  Metrics metrics;
  RoundMemory memory;
  PlanTable plans;
  OpenRounds open{Duration(), [] { return Duration(); }};
  RoundContributions contributions;
  RoundAtOnce at_once;
};

class Members {
 public:
  explicit Members(std::size_t limit = 4096) : hub_(ranks) {
    run_ranks(ranks, [&](int rank) {
      auto formed = HostMemory::form(*hub_.make_bootstrap(rank), soon());
      formed.status().throw_if_error();
      hosts_[static_cast<std::size_t>(rank)] = std::move(formed).value();
    });
    for (int rank = 0; rank < ranks; ++rank) {
      members_.emplace_back(hosts_[static_cast<std::size_t>(rank)], rank, limit);
    }
  }
  Member& at(int rank) { return members_[static_cast<std::size_t>(rank)]; }

 private:
  InprocHub hub_;
  std::array<std::shared_ptr<HostMemory>, ranks> hosts_;
  std::deque<Member> members_;
};

RepeatedCall call_of(const std::vector<float>& input, std::vector<float>& output,
                     const std::vector<std::int64_t>& shape) {
  return {.name = "x",
          .input = reinterpret_cast<const std::byte*>(input.data()),
          .output = reinterpret_cast<std::byte*>(output.data()),
          .shape = shape};
}

}  // namespace

TEST_CASE("all find what each has sent along, of each batch, in every round") {
  std::mt19937 random(GENERATE(range(0U, 20U)));
  Members members;
  ResponseList responses;
  std::vector<Fusion> batches;
  for (std::size_t i = 0; i < 1 + random() % 5; ++i) {
    responses.push_back(allreduce_of(str("t", i), static_cast<std::int64_t>(1 + random() % 99)));
    if (batches.empty() || random() % 2 == 0) batches.emplace_back();
    batches.back().members.push_back(i);
  }
  std::array<ReplayPlan*, ranks> plans{};
  for (int rank = 0; rank < ranks; ++rank) {
    plans.at(static_cast<std::size_t>(rank)) = &members.at(rank).learn(responses, batches);
  }
  for (int round = 0; round < 3; ++round) {
    const auto value_of = [&](int rank, std::size_t tensor) {
      return static_cast<float>(100 * round + 10 * static_cast<int>(tensor) + rank);
    };
    for (int rank = 0; rank < ranks; ++rank) {
      std::deque<std::vector<float>> tensors;
      ReplayPlan& plan = *plans.at(static_cast<std::size_t>(rank));
      for (std::size_t batch = 0; batch < batches.size(); ++batch) {
        for (std::size_t i = 0; i < batches[batch].members.size(); ++i) {
          const std::size_t tensor = batches[batch].members[i];
          tensors.emplace_back(static_cast<std::size_t>(responses[tensor].request.count()),
                               value_of(rank, tensor));
          Submission& submission = plan.batches[batch][i].submission.emplace();
          submission.request = responses[tensor].request;
          submission.input = reinterpret_cast<const std::byte*>(tensors.back().data());
        }
      }
      members.at(rank).contributions.send(plan);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      Member& member = members.at(rank);
      ReplayPlan& plan = *plans.at(static_cast<std::size_t>(rank));
      std::vector<const std::byte*> sent;
      REQUIRE(member.contributions.find(plan, sent));
      for (std::size_t batch = 0; batch < batches.size(); ++batch) {
        const Contributions of_batch = member.contributions.of_batch(plan, batch, sent);
        for (int from = 0; from < ranks; ++from) {
          const auto* value = reinterpret_cast<const float*>(of_batch.of(from));
          for (const std::size_t tensor : batches[batch].members) {
            for (std::int64_t i = 0; i < responses[tensor].request.count(); ++i) {
              REQUIRE(*value++ == value_of(from, tensor));
            }
          }
        }
      }
      ++plan.round;
    }
  }
}

TEST_CASE("only what is small is sent along, and only that is done at once") {
  Members members(64);
  const std::int64_t count = GENERATE(16, 17);
  ReplayPlan& plan = members.at(0).learn({allreduce_of("x", count)}, {{{0}}});
  CHECK(plan.sent.empty() == (count == 17));
  CHECK(plan.at_once.has_value() == (count == 16));
}

TEST_CASE("what all come to is done without a submission, and counted") {
  Members members;
  const std::vector<std::int64_t> shape{5};
  const std::array<std::vector<float>, ranks> inputs{std::vector<float>(5, 1.5F),
                                                     std::vector<float>(5, 2.5F)};
  std::array<std::vector<float>, ranks> results;
  for (int rank = 0; rank < ranks; ++rank) {
    (void)members.at(rank).learn({allreduce_of("x", 5)}, {{{0}}});
    results.at(static_cast<std::size_t>(rank)).resize(5);
  }
  for (int round = 1; round <= 3; ++round) {
    const RepeatedCall first = call_of(inputs[0], results[0], shape);
    const RepeatedCall second = call_of(inputs[1], results[1], shape);
    REQUIRE(members.at(0).at_once.join(first));
    CHECK(members.at(0).at_once.finish(first) == Is::open);
    REQUIRE(members.at(1).at_once.join(second));
    REQUIRE(members.at(0).at_once.finish(first) == Is::done);
    REQUIRE(members.at(1).at_once.finish(second) == Is::done);
    for (auto& result : results) {
      CHECK(result == std::vector<float>(5, 4));
      result.assign(5, 0);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const Metrics& metrics = members.at(rank).metrics;
      CHECK(metrics.tensors_submitted.get() == round);
      CHECK(metrics.tensors_completed.get() == round);
      CHECK(metrics.plans_eager.get() == round);
    }
  }
}

namespace {

// Calls that differ from the agreed one.
std::vector<RepeatedCall> others_than(const RepeatedCall& call) {
  static const std::vector<std::int64_t> splits{4, 1};
  static const std::vector<std::int64_t> longer{999, 2};
  std::vector<RepeatedCall> others(4, call);
  others[0].collective = Collective::allreduce;
  others[1].splits = splits;
  others[2].shape = longer;
  others[3].dtype = DataType::int32;
  const bool is_alltoall = call.collective == Collective::alltoall;
  if (!is_alltoall) {
    others.push_back(call);
    others.back().root = call.root == 0 ? 1 : 0;
  }
  if (call.output_bytes > 0 && !is_alltoall) {
    others.push_back(call);
    others.back().output_bytes += sizeof(float);
  }
  if (call.output_bytes > 0 || call.collective == Collective::broadcast) {
    others.push_back(call);
    others.back().output = nullptr;
  }
  return others;
}

}  // namespace

TEST_CASE("exchanges of tensors whose extents differ are done without a submission, too") {
  Members members;
  Response gather = allreduce_of("gather", 0);
  gather.request.collective = Collective::allgather;
  gather.request.shape = {3, 2};
  gather.first_extents = {3, 1};
  Response scatter = allreduce_of("scatter", 5);
  scatter.request.collective = Collective::reduce_scatter;
  Response split = scatter;
  split.request.name = "split";
  split.request.splits = {0, 5};
  Response from = allreduce_of("from", 3);
  from.request.collective = Collective::broadcast;
  from.request.root = 1;
  Response change = allreduce_of("change", 0);
  change.request.collective = Collective::alltoall;
  change.request.shape = {0, 2};
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Response& each : {gather, scatter, split, from, change}) {
      (void)members.at(rank).learn({each}, {{{0}}});
    }
  }
  using Values = std::vector<float>;
  using Numbers = std::vector<std::int64_t>;
  using Shapes = std::array<Numbers, ranks>;
  std::array<Numbers, ranks> received;
  const auto exchange = [&](RepeatedCall call, const std::array<Values, ranks>& inputs,
                            const Shapes& shapes, const std::array<Values, ranks>& expected,
                            const Shapes& rows = {}) {
    CAPTURE(call.name);
    std::array<Values, ranks> results;
    std::array<RepeatedCall, ranks> calls;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      results.at(rank).assign(expected.at(rank).size(), -1);
      call.input = reinterpret_cast<const std::byte*>(inputs.at(rank).data());
      call.output = reinterpret_cast<std::byte*>(results.at(rank).data());
      const bool has_bytes = call.collective != Collective::broadcast;
      call.output_bytes = has_bytes ? results.at(rank).size() * sizeof(float) : 0;
      call.shape = shapes.at(rank);
      call.received = &received.at(rank);
      if (call.collective == Collective::alltoall) call.splits = rows.at(rank);
      calls.at(rank) = call;
      for (const RepeatedCall& other : others_than(call)) {
        CHECK_FALSE(members.at(static_cast<int>(rank)).at_once.join(other));
      }
      REQUIRE(members.at(static_cast<int>(rank)).at_once.join(call));
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      REQUIRE(members.at(static_cast<int>(rank)).at_once.finish(calls.at(rank)) == Is::done);
      CHECK(results.at(rank) == expected.at(rank));
    }
  };
  const Values whole{1, 2, 3, 4, 5, 6, 7, 8};
  const Values sums{11, 22, 33, 44, 55};
  const std::vector<std::int64_t> all_to_one{0, 5};
  for (int round = 0; round < 3; ++round) {
    exchange({.name = "gather", .collective = Collective::allgather},
             {Values{1, 2, 3, 4, 5, 6}, Values{7, 8}}, {{{3, 2}, {1, 2}}}, {whole, whole});
    const std::array<Values, ranks> terms{Values{1, 2, 3, 4, 5}, Values{10, 20, 30, 40, 50}};
    exchange({.name = "scatter", .collective = Collective::reduce_scatter}, terms, {{{5}, {5}}},
             {Values{11, 22, 33}, Values{44, 55}});
    exchange({.name = "split", .collective = Collective::reduce_scatter, .splits = all_to_one},
             terms, {{{5}, {5}}}, {Values{}, sums});
    exchange({.name = "from", .collective = Collective::broadcast, .root = 1},
             {Values{0, 0, 0}, Values{7, 8, 9}}, {{{3}, {3}}},
             {Values{7, 8, 9}, Values{-1, -1, -1}});
  }
}

TEST_CASE("an alltoall that brings another number of rows than there is memory for is executed") {
  Members members;
  Response change = allreduce_of("x", 0);
  change.request.collective = Collective::alltoall;
  change.request.shape = {0};
  const std::vector<std::int64_t> shape{4};
  const std::vector<std::int64_t> splits{3, 1};
  std::vector<std::int64_t> received;
  std::vector<float> input{1, 2, 3, 4};
  std::vector<float> result(4);
  RepeatedCall call = call_of(input, result, shape);
  call.collective = Collective::alltoall;
  call.output_bytes = 16;
  call.received = &received;
  for (int rank = 0; rank < ranks; ++rank) (void)members.at(rank).learn({change}, {{{0}}});
  REQUIRE(members.at(0).at_once.join(call));
  RepeatedCall other = call;
  other.splits = splits;
  REQUIRE(members.at(1).at_once.join(other));
  CHECK(members.at(0).at_once.finish(call) == Is::to_be_executed);
  const auto handle = std::make_shared<HandleState>();
  members.at(1).at_once.hand_in(other, handle, Clock::now());
  const ReplayPlan& plan = *members.at(1).plans.find("x")->plan;
  CHECK(plan.batches[0][0].submission->rows == splits);
  CHECK(plan.batches[0][0].submission->request.output_bytes == 16);
}

TEST_CASE("a call that is not as agreed on, or while another round is open, joins nothing") {
  Members members;
  Member& member = members.at(0);
  (void)member.learn({allreduce_of("x", 5)}, {{{0}}});
  const std::vector<std::int64_t> shape{5};
  const std::vector<float> input(8);
  std::vector<float> result(8);
  RepeatedCall call = call_of(input, result, shape);
  ReplayPlan other;
  SECTION("the shape") {
    call.shape = std::span(shape).first(0);
  }
  SECTION("the name") {
    call.name = "y";
  }
  SECTION("the operation") {
    call.op = ReduceOp::max;
  }
  SECTION("the factor") {
    call.prescale = 2;
  }
  SECTION("the type") {
    call.dtype = DataType::int32;
  }
  SECTION("another round") {
    member.open.join(other);
  }
  SECTION("the plan is cancelled") {
    member.plans.find("x")->plan->off = true;
  }
  CHECK_FALSE(member.at_once.join(call));
  CHECK(member.metrics.tensors_submitted.get() == 0);
}

TEST_CASE("a call whose others do not come goes on as a submission that has joined") {
  Members members;
  Member& member = members.at(0);
  ReplayPlan& plan = member.learn({allreduce_of("x", 5)}, {{{0}}});
  const std::vector<std::int64_t> shape{5};
  const std::vector<float> input(5);
  std::vector<float> result(5);
  const RepeatedCall call = call_of(input, result, shape);
  REQUIRE(member.at_once.join(call));
  const auto handle = std::make_shared<HandleState>();
  const Time now = Clock::now();
  member.at_once.hand_in(call, handle, now);
  CHECK(member.open.is_joined(&plan));
  const auto& submission = plan.batches[0][0].submission;
  REQUIRE(submission);
  CHECK(submission->request.name == "x");
  CHECK(submission->input == call.input);
  CHECK(submission->taken_at == now);
  CHECK_FALSE(member.at_once.join(call));
  CHECK_FALSE(handle->is_done());
}

}  // namespace rueda::test::round_at_once_test
