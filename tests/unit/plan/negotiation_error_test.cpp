// Errors that all ranks see alike (mismatches, local errors, amendments, groups) and that leave no
// state behind.
#include "effort.h"
#include "ranks/negotiation_simulator.h"

namespace rueda::test::negotiation_error_test {
namespace {

// Submits `requests` on all ranks and runs to the end, `rounds` times; afterwards each must have
// been executed everywhere.
void require_sound_rounds(NegotiationSimulator& simulator, const std::vector<Request>& requests,
                          int rounds = 3) {
  for (int round = 0; round < rounds; ++round) {
    for (int rank = 0; rank < simulator.size(); ++rank) {
      REQUIRE(simulator.submit(rank, requests).ok());
      simulator.steps(simulator.below(5));
    }
    simulator.settle();
    simulator.require_agreement();
    for (int rank = 0; rank < simulator.size(); ++rank) {
      for (const Request& request : requests) {
        REQUIRE(simulator.rank(rank).answers[request.name].back().kind == ResponseKind::execute);
      }
    }
  }
}

const Response& last_answer(NegotiationSimulator& simulator, int rank, const std::string& name) {
  return simulator.rank(rank).answers.at(name).back();
}

NegotiatorOptions options_of(int fanout) {
  NegotiatorOptions options;
  options.fanout = fanout;
  return options;
}

struct Deviation {
  std::string field;
  std::function<void(Request&)> apply;
};

const std::vector<Deviation> deviations{
    {"operation", [](Request& it) { it.collective = Collective::barrier; }},
    {"dtype", [](Request& it) { it.dtype = DataType::int32; }},
    {"shape", [](Request& it) { it.shape = {4, 1}; }},
    {"op", [](Request& it) { it.op = ReduceOp::max; }},
    {"root rank", [](Request& it) { it.root = 0; }},
    {"priority", [](Request& it) { it.priority = 1; }},
    {"prescale factor", [](Request& it) { it.prescale = 0.5; }},
    {"postscale factor", [](Request& it) { it.postscale = 2; }},
    {"splits", [](Request& it) { it.splits = {4}; }},
    {"group", [](Request& it) { it.group = "others", it.group_size = 1; }},
};

TEST_CASE("more rows than can be counted on all ranks are refused") {
  const auto collective = GENERATE(Collective::allgather, Collective::alltoall);
  Request request = allreduce_of("x", {std::int64_t{1} << 62, 0});
  request.collective = collective;
  request.dtype = DataType::uint8;
  CHECK(validate(request, 1).ok());
  const Status refusal = validate(request, 2);
  CHECK(refusal.code() == ErrorCode::invalid_argument);
  // The answer to all ranks begins with the name.
  CHECK(refusal.to_string().find("'x'") == std::string::npos);
  request.shape.front() -= 1;
  CHECK(validate(request, 2).ok());
}

TEST_CASE("every field in which ranks differ is named, with the ranks, and leaves nothing behind") {
  const bool known_before = GENERATE(false, true);
  for (const Deviation& deviation : deviations) {
    for (const int size : efforts({2, 3, 4, 5, 6, 7, 8, 9}, {2, 4, 9})) {
      CAPTURE(deviation.field, size, known_before);
      NegotiationSimulator simulator(size, options_of(1 + size % 3), static_cast<unsigned>(size));
      if (known_before) require_sound_rounds(simulator, {allreduce_of("x")});
      const int odd = simulator.below(size);
      for (int rank = 0; rank < size; ++rank) {
        Request request = allreduce_of("x");
        if (rank == odd) deviation.apply(request);
        REQUIRE(simulator.submit(rank, request).ok());
        simulator.steps(simulator.below(4));
      }
      simulator.settle();
      simulator.require_agreement();
      const Status& status = last_answer(simulator, 0, "x").status;
      REQUIRE(status.code() == ErrorCode::mismatch);
      const std::string text = status.to_string();
      REQUIRE(text.find(deviation.field + " differs between ranks") != std::string::npos);
      REQUIRE(text.find(str("rank ", odd)) != std::string::npos);
      for (int rank = 0; rank < size; ++rank) {
        const ErrorDetails details = last_answer(simulator, rank, "x").status.details();
        REQUIRE(details.tensor == "x");
        REQUIRE(details.field == deviation.field);
        REQUIRE(details.values.size() == 2);
        for (const std::string& value : details.values) {
          REQUIRE(text.find(value + " on rank") != std::string::npos);
        }
        REQUIRE(details.values[0] != details.values[1]);
      }
      require_sound_rounds(simulator, {allreduce_of("x")});
    }
  }
}

TEST_CASE("many ways to ask are counted, not all listed") {
  NegotiationSimulator simulator(12, options_of(2), 3);
  for (int rank = 0; rank < 12; ++rank) {
    REQUIRE(simulator.submit(rank, allreduce_of("x", {rank})).ok());
  }
  simulator.settle();
  simulator.require_agreement();
  const std::string text = last_answer(simulator, 5, "x").status.to_string();
  REQUIRE(text.find("and in 4 more ways") != std::string::npos);
}

TEST_CASE("the values of an error are those of one field, each once") {
  NegotiationSimulator simulator(4, {}, 1);
  for (int rank = 0; rank < 4; ++rank) {
    Request request = allreduce_of("x", {rank < 2 ? 3 : 4});
    if (rank == 3) request.dtype = DataType::int8;
    REQUIRE(simulator.submit(rank, request).ok());
  }
  simulator.settle();
  const ErrorDetails details = last_answer(simulator, 3, "x").status.details();
  REQUIRE(details.field == "shape");
  REQUIRE(details.values == std::vector<std::string>{"[3]", "[4]"});
}

TEST_CASE("the reason of a refusal reaches every rank, with the name") {
  for (const ErrorReason reason : {ErrorReason::unspecified, ErrorReason::gradient_misfit}) {
    NegotiationSimulator simulator(7, options_of(2), 4);
    for (int rank = 0; rank < 7; ++rank) {
      Request request = allreduce_of("x");
      if (rank == 5) {
        request.error = Status(ErrorCode::invalid_argument, "no", -1, {.reason = reason});
      }
      REQUIRE(simulator.submit(rank, request).ok());
    }
    simulator.settle();
    for (int rank = 0; rank < 7; ++rank) {
      const Status& status = last_answer(simulator, rank, "x").status;
      REQUIRE(status.peer() == 5);
      REQUIRE(status.details() == ErrorDetails{.reason = reason, .tensor = "x"});
    }
  }
}

TEST_CASE("a rank that cannot take part fails the name or its whole group everywhere") {
  const int group_size = GENERATE(1, 3);
  for (int size = 1; size <= 9; ++size) {
    CAPTURE(size, group_size);
    const std::vector<Request> sound =
        group_size == 1 ? std::vector<Request>{allreduce_of("g.0")} : group_of("g", group_size);
    NegotiationSimulator simulator(size, options_of(1 + size % 3), static_cast<unsigned>(size));
    require_sound_rounds(simulator, sound, 1);
    const int culprit = simulator.below(size);
    for (int rank = 0; rank < size; ++rank) {
      std::vector<Request> requests = sound;
      if (rank == culprit) requests.back().error = Status(ErrorCode::unsupported, "out of paper");
      REQUIRE(simulator.submit(rank, requests).ok());
      simulator.steps(simulator.below(6));
    }
    simulator.settle();
    simulator.require_agreement();
    for (int rank = 0; rank < size; ++rank) {
      for (const Request& request : sound) {
        REQUIRE(simulator.rank(rank).answers.at(request.name).size() == 2);
        const Status& status = last_answer(simulator, rank, request.name).status;
        REQUIRE(status.code() == ErrorCode::unsupported);
        REQUIRE(status.peer() == culprit);
        REQUIRE(status.to_string().find("out of paper") != std::string::npos);
      }
    }
    require_sound_rounds(simulator, sound);
  }
}

// The amendment is made at a random moment between submission and answer. The cache is small and
// other names are in flight, so that numbers are evicted while amendments travel.
void race_amendment(int size, const std::vector<Request>& requests, unsigned seed, int& failures) {
  CAPTURE(size, requests.size(), seed);
  NegotiatorOptions options = options_of(1 + static_cast<int>(seed % 3));
  options.cache_capacity = seed % 4 == 3 ? 1024 : seed % 4;
  NegotiationSimulator simulator(size, options, seed);
  require_sound_rounds(simulator, requests, 2);
  simulator.set_busy(0, seed % 2 == 0);
  const int culprit = simulator.below(size);
  for (int rank = 0; rank < size; ++rank) {
    REQUIRE(simulator.submit(rank, requests).ok());
    if (rank % 2 == 0) REQUIRE(simulator.submit(rank, allreduce_of("other")).ok());
    simulator.steps(simulator.below(3));
  }
  for (int rank = 1; rank < size; rank += 2) {
    REQUIRE(simulator.submit(rank, allreduce_of("other")).ok());
  }
  simulator.steps(simulator.below(4 * size));
  const std::string& name = requests.back().name;
  if (simulator.rank(culprit).pending.contains(name)) {
    simulator.amend(culprit, name, Status(ErrorCode::duplicate_name, "twice"));
    if (seed % 5 == 0) simulator.amend(culprit, name, Status(ErrorCode::duplicate_name, "twice"));
  }
  simulator.steps(simulator.below(4));
  simulator.set_busy(0, false);
  // A rank that has its answer continues at once while others still wait for theirs.
  std::vector<int> rounds_left(static_cast<std::size_t>(size), 3);
  for (int open = 3 * size; open > 0;) {
    simulator.steps(simulator.below(3));
    const int rank = simulator.below(size);
    int& left = rounds_left[static_cast<std::size_t>(rank)];
    if (left == 0 || simulator.rank(rank).pending.contains(name)) continue;
    REQUIRE(simulator.submit(rank, requests).ok());
    --left, --open;
  }
  simulator.settle();
  simulator.require_agreement();
  for (const Request& request : requests) {
    const auto& answers = simulator.rank(0).answers.at(request.name);
    REQUIRE(answers.size() == 6);
    for (std::size_t round = 3; round < 6; ++round) {
      REQUIRE(answers[round].kind == ResponseKind::execute);
    }
    REQUIRE(answers[2].kind == simulator.rank(0).answers.at(name)[2].kind);
  }
  failures += simulator.rank(0).answers.at(name)[2].kind == ResponseKind::error ? 1 : 0;
}

TEST_CASE("an amendment that races with the agreement fails the name on all ranks or on none") {
  const int group_size = GENERATE(0, 2);
  constexpr unsigned races = effort(600, 120);
  int failures = 0;
  for (unsigned seed = 0; seed < races; ++seed) {
    const int size = 1 + static_cast<int>(seed % 11);
    race_amendment(
        size, group_size == 0 ? std::vector<Request>{allreduce_of("x")} : group_of("g", group_size),
        seed, failures);
  }
  REQUIRE(failures > effort(50, 10));
  REQUIRE(failures < static_cast<int>(races) - effort(50, 10));
}

TEST_CASE("an amendment reaches the root after the announcement that it amends") {
  // A chain: rank 1 has already forwarded the announcement.
  const int culprit = GENERATE(1, 2);
  NegotiationSimulator simulator(3, options_of(1), 4);
  const bool known_before = GENERATE(false, true);  // if so, it is announced by its number
  if (known_before) require_sound_rounds(simulator, {allreduce_of("x")});
  for (const int rank : {1, 2}) REQUIRE(simulator.submit(rank, allreduce_of("x")).ok());
  simulator.settle();
  simulator.amend(culprit, "x", Status(ErrorCode::duplicate_name, "twice"));
  simulator.settle();
  REQUIRE(simulator.submit(0, allreduce_of("x")).ok());
  simulator.settle();
  simulator.require_agreement();
  for (int rank = 0; rank < 3; ++rank) {
    const Status& status = last_answer(simulator, rank, "x").status;
    REQUIRE(status.code() == ErrorCode::duplicate_name);
    REQUIRE(status.peer() == culprit);
  }
  require_sound_rounds(simulator, {allreduce_of("x")});
}

TEST_CASE("a name in different groups, or in none, on different ranks fails for all of them") {
  for (unsigned seed = 0; seed < effort(200U, 42U); ++seed) {
    const int size = 3 + static_cast<int>(seed % 7);
    CAPTURE(seed, size);
    NegotiationSimulator simulator(size, options_of(1 + static_cast<int>(seed % 3)), seed);
    const int odd = simulator.below(size);
    const int alone = (odd + 1) % size;
    for (int rank = 0; rank < size; ++rank) {
      std::vector<Request> requests = group_of("g", 2);
      for (Request& request : requests) {
        if (rank == odd) request.group = "h";
        if (rank == alone) request.group = "", request.group_size = 0;
      }
      if (rank == alone) {
        REQUIRE(simulator.submit(rank, requests[0]).ok());
        simulator.steps(simulator.below(20));
        REQUIRE(simulator.submit(rank, requests[1]).ok());
      } else {
        REQUIRE(simulator.submit(rank, requests).ok());
      }
      simulator.steps(simulator.below(6));
    }
    simulator.settle();
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(simulator.rank(rank).lists == simulator.rank(0).lists);
      // The loner's second name may arrive after the groups have failed; then no rank is left to
      // share its failure.
      const bool late = rank == alone && simulator.rank(rank).pending.contains("g.1");
      REQUIRE(simulator.rank(rank).pending.size() == (late ? 1 : 0));
      for (const auto& [name, answers] : simulator.rank(rank).answers) {
        REQUIRE(answers.size() == 1);
        REQUIRE(answers.front().status.code() == ErrorCode::mismatch);
      }
    }
  }
}

TEST_CASE("an error tells every rank to which set the rank that refuses has handed the name") {
  const bool refuses = GENERATE(true, false);
  NegotiationSimulator simulator(7, options_of(2), 1);
  for (int rank = 0; rank < 7; ++rank) {
    Request request = allreduce_of("x");
    if (rank == 5) {
      request.error = Status(ErrorCode::mismatch, "elsewhere");
      if (refuses) request.other_set = 511;
    }
    REQUIRE(simulator.submit(rank, request).ok());
  }
  simulator.settle();
  for (int rank = 0; rank < 7; ++rank) {
    const Response& answer = last_answer(simulator, rank, "x");
    REQUIRE(answer.status.code() == ErrorCode::mismatch);
    REQUIRE(answer.other_set == (refuses ? 511 : -1));
  }
}

TEST_CASE("differences between changes of process sets are named as what they are") {
  const auto [collective, field, first, second] = GENERATE(table<Collective, std::string, int, int>(
      {{Collective::add_process_set, "ranks", 0, 1},
       {Collective::remove_process_set, "process set", 3, 400}}));
  NegotiationSimulator simulator(5, options_of(2), 1);
  const auto request_of = [&, collective = collective](int value) {
    Request request = allreduce_of("x", {});
    request.collective = collective;
    if (collective == Collective::add_process_set) request.set_ranks = {value, 300};
    if (collective == Collective::remove_process_set) request.set_id = value;
    return request;
  };
  for (int rank = 0; rank < 5; ++rank) {
    REQUIRE(simulator.submit(rank, request_of(rank == 4 ? second : first)).ok());
  }
  simulator.settle();
  const std::vector<std::string> values = collective == Collective::add_process_set
                                              ? std::vector<std::string>{"[0, 300]", "[1, 300]"}
                                              : std::vector<std::string>{"3", "400"};
  for (int rank = 0; rank < 5; ++rank) {
    const ErrorDetails details = last_answer(simulator, rank, "x").status.details();
    REQUIRE(details.field == field);
    REQUIRE(details.values == values);
  }
  // A request on which all ranks agree arrives unchanged.
  for (int rank = 0; rank < 5; ++rank) REQUIRE(simulator.submit(rank, request_of(second)).ok());
  simulator.settle();
  for (int rank = 0; rank < 5; ++rank) {
    const Response& answer = last_answer(simulator, rank, "x");
    REQUIRE(answer.kind == ResponseKind::execute);
    REQUIRE(answer.request.set_ranks == request_of(second).set_ranks);
    REQUIRE(answer.request.set_id == request_of(second).set_id);
  }
}

TEST_CASE("ranks that know better refuse at once") {
  NegotiationSimulator simulator(2, {}, 1);
  simulator.join(1);
  const Status joined = simulator.submit(1, allreduce_of("x"));
  REQUIRE(joined.code() == ErrorCode::invalid_argument);
  REQUIRE(joined.to_string().find("join") != std::string::npos);
  simulator.leave(0);
  simulator.settle();
  REQUIRE(simulator.submit(0, allreduce_of("x")).code() == ErrorCode::shutdown);
}

}  // namespace
}  // namespace rueda::test::negotiation_error_test
