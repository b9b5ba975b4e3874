// The backend calls and the result of an unfused batch.
#include "coordinator/unfused_collective.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <utility>

namespace rueda::test::unfused_collective_test {

namespace {

class Nothing : public Operation {
 public:
  bool advance() override { return false; }
  [[nodiscard]] bool done() const override { return true; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override { return {}; }

 private:
  Status status_;
};

// Records the calls.
class Notebook : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override { return "notebook"; }
  std::unique_ptr<Operation> allreduce(const Lane&, const Reduction&, std::vector<Piece>) override {
    return nullptr;
  }
  std::unique_ptr<Operation> reduce_scatter(const Lane&, const Reduction& reduction,
                                            const std::byte* input, std::byte*,
                                            std::vector<std::int64_t> lengths) override {
    contributors = reduction.contributors;
    return note(input, std::move(lengths));
  }
  std::unique_ptr<Operation> allgather(const Lane&, const std::byte* input, std::byte*,
                                       std::vector<std::int64_t> lengths) override {
    return note(input, std::move(lengths));
  }
  std::unique_ptr<Operation> broadcast(const Lane&, std::byte* data, std::int64_t bytes,
                                       int root) override {
    return note(data, {bytes, root});
  }
  std::unique_ptr<Operation> alltoall(const Lane&, AlltoallInput input,
                                      AllocateRows allocate) override {
    allocate({2, 0, 3});
    return note(input.data, std::move(input.rows));
  }

  const std::byte* asked_with = nullptr;
  std::vector<std::int64_t> numbers;
  int contributors = 0;

 private:
  std::unique_ptr<Operation> note(const std::byte* from, std::vector<std::int64_t> its) {
    asked_with = from;
    numbers = std::move(its);
    return std::make_unique<Nothing>();
  }
};

constexpr int rank = 1;

// A batch of float32 tensors with rows of two elements, on rank 1 of three.
struct Batch {
  explicit Batch(Collective collective, std::int64_t rows, bool has_joined = false) {
    auto response = std::make_shared<Response>();
    response->request.collective = collective;
    response->request.name = "x";
    response->request.shape = {rows, 2};
    if (has_joined) {
      response->absent = {rank};
    } else {
      member.submission.emplace().request = response->request;
      member.submission->input = input.data();
      member.submission->output = output.data();
    }
    agreed = response.get();
    member.response = std::move(response);
    lane.members = &ranks;
    lane.rank = rank;
  }

  OperationOutput run() {
    UnfusedCollective collective(context, lane, member);
    REQUIRE(collective.start({}) != nullptr);
    return collective.take_output();
  }

  std::vector<std::byte> input = std::vector<std::byte>(1024);
  std::vector<std::byte> output = std::vector<std::byte>(1024);
  std::vector<int> ranks{0, 1, 2};
  Notebook backend;
  ExecutionContext context{&backend, nullptr, nullptr, nullptr, nullptr, {}};
  Lane lane;
  BatchMember member;
  Response* agreed;
};

}  // namespace

TEST_CASE("rows are divided evenly, the first ranks have one more, or as asked for") {
  const int ranks = GENERATE(range(1, 8));
  const std::int64_t rows = GENERATE(range(0, 20));
  Request request;
  request.shape = {rows, 3};
  const std::vector<std::int64_t> divided = rows_per_rank(request, ranks);
  REQUIRE(divided.size() == static_cast<std::size_t>(ranks));
  CHECK(std::accumulate(divided.begin(), divided.end(), std::int64_t{0}) == rows);
  CHECK(std::is_sorted(divided.rbegin(), divided.rend()));
  CHECK(divided.front() - divided.back() <= 1);
  request.splits = {7, 0, 1};
  CHECK(rows_per_rank(request, 3) == request.splits);
}

TEST_CASE("a reduce-scatter brings this rank's rows") {
  const std::int64_t rows = GENERATE(range(0, 10));
  const bool has_joined = GENERATE(false, true);
  Batch batch(Collective::reduce_scatter, rows, has_joined);
  const OperationOutput output = batch.run();
  const std::vector<std::int64_t> divided = rows_per_rank(batch.agreed->request, 3);
  CHECK(output.shape == Shape{divided[rank], 2});
  CHECK(batch.backend.numbers ==
        std::vector<std::int64_t>{2 * divided[0], 2 * divided[1], 2 * divided[2]});
  CHECK(batch.backend.asked_with == (has_joined ? nullptr : batch.input.data()));
  CHECK(batch.backend.contributors == (has_joined ? 2 : 3));
}

TEST_CASE("an allgather brings the rows of all, also of who has joined") {
  const bool has_joined = GENERATE(false, true);
  Batch batch(Collective::allgather, 4, has_joined);
  batch.agreed->first_extents = {1, has_joined ? 0 : 4, 2};
  const OperationOutput output = batch.run();
  CHECK(output.shape == Shape{has_joined ? 3 : 7, 2});
  CHECK(batch.backend.numbers == std::vector<std::int64_t>{8, has_joined ? 0 : 32, 16});
}

TEST_CASE("a broadcast writes where the application says, or nowhere that anybody sees") {
  const bool has_joined = GENERATE(false, true);
  Batch batch(Collective::broadcast, 4, has_joined);
  batch.agreed->request.root = 2;
  const OperationOutput output = batch.run();
  CHECK(output.data == nullptr);
  CHECK(batch.backend.numbers == std::vector<std::int64_t>{32, 2});
  CHECK((batch.backend.asked_with == batch.output.data()) == !has_joined);
  CHECK(batch.backend.asked_with != nullptr);
}

TEST_CASE("an all-to-all brings what the ranks have sent") {
  Batch batch(Collective::alltoall, 6);
  batch.member.submission->rows = {1, 2, 3};
  const OperationOutput output = batch.run();
  CHECK(output.received_splits == std::vector<std::int64_t>{2, 0, 3});
  CHECK(output.shape == Shape{5, 2});
  CHECK(output.data != nullptr);
  CHECK(batch.backend.numbers == std::vector<std::int64_t>{1, 2, 3});
}

TEST_CASE("a result lies where the caller has room for just as much") {
  Batch batch(Collective::alltoall, 6);
  const std::size_t bytes = 5 * 2 * sizeof(float);
  const std::size_t room = GENERATE(as<std::size_t>{}, 0, 39, 40, 41);
  batch.member.submission->request.output_bytes = room;
  const OperationOutput output = batch.run();
  CHECK((output.data == nullptr) == (room == bytes));
  CHECK(output.shape == Shape{5, 2});
}

TEST_CASE("what is an allreduce, or moves no data, is not started") {
  const auto collective = GENERATE(Collective::allreduce, Collective::barrier, Collective::join);
  Batch batch(collective, 1);
  UnfusedCollective unfused(batch.context, batch.lane, batch.member);
  CHECK(unfused.start({}) == nullptr);
}

TEST_CASE("an average counts who contributes, all if that is asked for, or the leaves") {
  Response agreed;
  agreed.absent = {2};
  CHECK(reduction_of(agreed, 3, false).divisor == 2);
  CHECK(reduction_of(agreed, 3, true).divisor == 3);
  CHECK(reduction_of(agreed, 3, true).contributors == 2);
  CHECK(reduction_of(agreed, 3, false).leaves == nullptr);
  agreed.request.leaf_ranks = {0, 0, 1, 1};
  CHECK(reduction_of(agreed, 3, true).divisor == 4);
  CHECK(reduction_of(agreed, 3, false).leaves != nullptr);
}

}  // namespace rueda::test::unfused_collective_test
