// Invalid arguments of the public functions.
#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/bindings.h"
#include "api/current_runtime.h"
#include "api/persistent_kinds.h"
#include "ranks/worlds_of_rank_threads.h"
#include "rueda/rueda.h"

namespace rueda::test::arguments_test {

namespace {

constexpr std::int64_t count = 4;
using Values = std::array<float, count>;

TensorView view_of(Values& values) {
  return {values.data(), {count}, DataType::float32};
}
TensorView without_memory() {
  return {nullptr, {count}, DataType::float32};
}

// Requires that `act` throws an InvalidArgumentError that contains `why`.
void expect_refused(const std::string& why, const std::function<void()>& act) {
  try {
    act();
  } catch (const InvalidArgumentError& error) {
    const std::string text = error.what();
    return expect(text.find(why) != std::string::npos, "'" + why + "' in: " + text);
  }
  throw std::runtime_error("not refused, though " + why);
}
void expect_refused(const std::string& why, const Handle& handle) {
  expect_refused(why, [&] {
    expect(handle.wait_for(std::chrono::seconds(60)), "an operation that completes");
  });
}

}  // namespace

TEST_CASE("a tensor without memory on one rank is an error on all, and harms no other tensor") {
  with_world(2, "no-memory", [](int rank, ProcessSet set) {
    const auto reduce = [&](const std::string& name, const TensorView& input, void* output) {
      return allreduce(input, output, {.name = name, .op = ReduceOp::sum, .process_set = set});
    };
    // Twice, since repeated operations are replayed without negotiation.
    for (int round = 0; round < 2; ++round) {
      Values fine{1, 2, 3, 4};
      Values values{};
      const Handle bad =
          reduce("input", rank == 0 ? without_memory() : view_of(values), values.data());
      const Handle good = reduce("fine", view_of(fine), fine.data());
      expect_refused("'input'", bad);
      good.wait();
      expect(fine == Values{2, 4, 6, 8}, "the sum of a tensor that is reduced along with it");
      expect_refused("'output'", reduce("output", view_of(values), rank == 1 ? nullptr : &values));
    }
    Values values{};
    const auto given = [&](int without) {
      return rank == without ? without_memory() : view_of(values);
    };
    const CallOptions options{.process_set = set};
    expect_refused("is null", broadcast(given(0), 0, options));
    expect_refused("is null", broadcast(given(1), 0, options));
    expect_refused("is null", allgather(given(0), options));
    expect_refused("is null", reduce_scatter(given(1), {.process_set = set}));
    expect_refused("is null", alltoall(given(0), {}, options));
    reduce("nothing", {nullptr, {0}, DataType::float32}, nullptr).wait();
  });
}

TEST_CASE("a number that names no type, reduction or codec on one rank is an error on all") {
  with_world(2, "unknown", [](int rank, ProcessSet set) {
    Values values{1, 2, 3, 4};
    constexpr auto no_type = static_cast<DataType>(data_types.size());
    const std::string no_type_text = "15 is not a rueda::DataType";
    TensorView given = view_of(values);
    if (rank == 0) given.dtype = no_type;
    const CallOptions options{.process_set = set};
    const AllreduceOptions again{.name = "again", .op = ReduceOp::sum, .process_set = set};
    const CallOptions gather{.name = "gather", .process_set = set};
    for (int round = 0; round < 20; ++round) {  // after which these are replayed
      allreduce_blocking(view_of(values), values.data(), again);
      (void)allgather_blocking(view_of(values), gather);
    }
    expect_refused(no_type_text, [&] { allreduce_blocking(given, values.data(), again); });
    expect_refused(no_type_text, [&] { (void)allgather_blocking(given, gather); });
    expect_refused(no_type_text, allreduce(given, values.data(), {.process_set = set}));
    const std::array inputs{view_of(values), given};
    const std::array<void*, 2> outputs{values.data(), values.data()};
    for (const Handle& handle : grouped_allreduce(inputs, outputs, {.process_set = set})) {
      expect_refused(no_type_text, handle);
    }
    expect_refused(no_type_text, broadcast(given, 1, options));
    expect_refused(no_type_text, allgather(given, options));
    expect_refused(no_type_text, alltoall(given, {}, options));
    expect_refused(no_type_text, reduce_scatter(given, {.process_set = set}));
    expect_refused(no_type_text, [&] {
      const PersistentAgreement agreement(runtime_of(set).runtime, given, values.data(),
                                          {.name = "run"});
      agreement.handle().wait();
    });
    for (const auto call : {send, recv}) {
      expect_refused(no_type_text, [&] {
        call({values.data(), {count}, no_type}, 1 - rank, {.process_set = set}).wait();
      });
    }
    const auto reduced = [&](const AllreduceOptions& wrong) {
      AllreduceOptions given_options = rank == 1 ? wrong : AllreduceOptions{};
      given_options.process_set = set;
      return allreduce(view_of(values), values.data(), given_options);
    };
    const auto no_op = static_cast<ReduceOp>(200);
    expect_refused("200 is not a rueda::ReduceOp", reduced({.op = no_op}));
    expect_refused(no_type_text, reduced({.wire_dtype = no_type}));
    expect_refused("200 is not a rueda::CodecKind",
                   reduced({.compression = {static_cast<CodecKind>(200), 0}}));
    const ReduceOp op = rank == 1 ? no_op : ReduceOp::sum;
    expect_refused("200 is not a rueda::ReduceOp",
                   reduce_scatter(view_of(values), {.op = op, .process_set = set}));
    barrier(options).wait();
  });
}

TEST_CASE("a refusal needs an error and no negative group, and another harms no world") {
  with_world(2, "refusal", [](int rank, ProcessSet set) {
    Values values{1, 2, 3, 4};
    const AllreduceOptions options{.name = "sum", .op = ReduceOp::sum, .process_set = set};
    if (rank == 0) {
      for (const auto code : {ErrorCode::ok, static_cast<ErrorCode>(200)}) {
        expect_refused("is not an error", [&] { (void)refuse("sum", set, "because", code); });
      }
      expect_refused("group_size is -3",
                     [&] { (void)refuse("sum", set, "because", ErrorCode::invalid_argument, -3); });
    }
    allreduce(view_of(values), values.data(), options).wait();
    expect_refused("because", rank == 0 ? refuse("sum", set, "because")
                                        : allreduce(view_of(values), values.data(), options));
  });
}

TEST_CASE("memory of a size that no object can have is refused") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {most, most - 62, most - 63, most - 64, most / 2 + 1}) {
    CHECK_THROWS_AS(allocate(bytes), std::bad_alloc);
  }
}

TEST_CASE("what has been replayed is not replayed without memory") {
  with_world(2, "replayed", [](int rank, ProcessSet set) {
    const AllreduceOptions options{.name = "again", .op = ReduceOp::sum, .process_set = set};
    for (int round = 0; round < 20; ++round) {
      Values values{1, 2, 3, 4};
      allreduce_blocking(view_of(values), values.data(), options, std::nullopt).wait();
      expect(values == Values{2, 4, 6, 8}, "the sum");
    }
    Values values{};
    const std::array shape{count};
    if (rank == 0) {
      Handle handle;
      const Tried tried = try_to_repeat(
          {.name = "again",
           .output = values.data(),
           .shape = shape,
           .op = ReduceOp::sum,
           .process_set = set},
          [] { return soon(); }, handle);
      expect(tried == Tried::not_repeated, "nothing is repeated");
    }
    const TensorView input = rank == 0 ? without_memory() : view_of(values);
    expect_refused("'again'", allreduce_blocking(input, values.data(), options, soon()));
  });
}

TEST_CASE("a blocking allreduce does what one does that is waited for") {
  with_world(2, "blocking", [](int rank, ProcessSet set) {
    const AllreduceOptions options{.name = "sum", .op = ReduceOp::sum, .process_set = set};
    for (int round = 0; round < 20; ++round) {
      Values values{1, 2, 3, 4};
      allreduce_blocking(view_of(values), values.data(), options);
      expect(values == Values{2, 4, 6, 8}, "the sum");
    }
    AllreduceOptions travelling = options;
    travelling.name = "as float16";
    travelling.wire_dtype = DataType::float16;
    for (int round = 0; round < 3; ++round) {
      Values values{1, 2, 3, 4};
      allreduce_blocking(view_of(values), values.data(), travelling);
      expect(values == Values{2, 4, 6, 8}, "the sum of what travels with 16 bits");
    }
    Values values{};
    const TensorView input = rank == 0 ? without_memory() : view_of(values);
    expect_refused("'sum'", [&] { allreduce_blocking(input, values.data(), options); });
    values = {1, 2, 3, 4};
    allreduce_blocking(view_of(values), values.data(), options);
    expect(values == Values{2, 4, 6, 8}, "the sum after an error");
  });
}

TEST_CASE("blocking collectives do what those do that are waited for") {
  with_world(2, "blocking exchanges", [](int rank, ProcessSet set) {
    using Whole = std::array<float, 2 * count>;
    const int other = 1 - rank;
    const auto number = [](int integer) { return static_cast<float>(integer); };
    const auto whole_of = [](Whole& whole) {
      return TensorView{whole.data(), {2 * count}, DataType::float32};
    };
    // Results in the caller's and the engine's memory, with a repeated name and with none.
    for (int round = 0; round < 20; ++round) {
      const std::string name = round % 2 == 0 ? "again" : "";
      const auto named = [&](const std::string& what) { return name.empty() ? name : what + name; };
      Values values{};
      values.fill(number(rank + round));
      Whole whole{};
      const Output gathered = allgather_blocking(
          view_of(values),
          {.name = named("gather"), .process_set = set, .result = {whole.data(), sizeof whole}});
      expect(gathered.data == nullptr && gathered.shape == Shape{2 * count}, "in our memory");
      expect(whole[count - 1] == number(round) && whole[count] == number(1 + round),
             "all that was gathered");
      const Output mine = reduce_scatter_blocking(
          whole_of(whole), {.name = named("scatter"), .op = ReduceOp::sum, .process_set = set});
      expect(mine.shape == Shape{count}, "half of it");
      expect(reinterpret_cast<float*>(mine.data.get())[0] == number(2 * (rank + round)), "the sum");
      const Output exchanged = alltoall_blocking(view_of(values), {1, count - 1},
                                                 {.name = named("exchange"), .process_set = set});
      const std::int64_t rows = rank == 0 ? 1 : count - 1;
      expect(exchanged.received_splits == std::vector<std::int64_t>{rows, rows}, "what came");
      expect(reinterpret_cast<float*>(exchanged.data.get())[rows * other] == number(other + round),
             "of the other rank");
      broadcast_blocking(view_of(values), 1, {.name = named("from 1"), .process_set = set});
      expect(values[0] == number(1 + round), "what rank 1 has");
      barrier_blocking({.name = named("barrier"), .process_set = set});
    }
    const TensorView input = without_memory();
    const CallOptions options{.process_set = set};
    expect_refused("is null", [&] { (void)allgather_blocking(input, options); });
    expect_refused("is null", [&] { broadcast_blocking(input, 0, options); });
    expect_refused("is null", [&] { (void)alltoall_blocking(input, {}, options); });
    expect_refused("is null", [&] { (void)reduce_scatter_blocking(input, {.process_set = set}); });
  });
}

TEST_CASE("messages have a shape and memory") {
  with_world(2, "messages", [](int rank, ProcessSet set) {
    Values values{};
    const MessageOptions options{.process_set = set};
    for (const auto call : {send, recv}) {
      const auto refused = [&](const std::string& why, void* data, const Shape& shape) {
        expect_refused(why, [&] { call({data, shape}, 1 - rank, options).wait(); });
      };
      refused("negative extent", values.data(), {-5});
      refused("more than can be addressed", values.data(), {1LL << 40, 1LL << 40});
      refused("is null", nullptr, {count});
      call({nullptr, {0}}, 1 - rank, options).wait();
    }
    if (rank == 0) values = {1, 2, 3, 4};
    (rank == 0 ? send : recv)(view_of(values), 1 - rank, options).wait();
    expect(values == Values{1, 2, 3, 4}, "what was sent");
  });
}

TEST_CASE("what a compression keeps fits it, or every rank is told") {
  with_world(2, "feedback", [](int rank, ProcessSet set) {
    Values values{1, 2, 3, 4};
    Values residual{};
    Values velocity{};
    const Compression sparse{CodecKind::top_k, 0.5};
    const auto reduced = [&](const Compression& compression, const AllreduceOptions& feedback) {
      AllreduceOptions options{.process_set = set, .compression = compression};
      if (rank == 1) {
        options.residuals = feedback.residuals;
        options.velocities = feedback.velocities;
        options.momentum = feedback.momentum;
      }
      return allreduce(view_of(values), values.data(), options);
    };
    const AllreduceOptions both{
        .residuals = {residual.data()}, .velocities = {velocity.data()}, .momentum = 0.5};
    for (const double momentum : {-0.5, 1.0, 5.0, std::numeric_limits<double>::quiet_NaN()}) {
      AllreduceOptions with_momentum = both;
      with_momentum.momentum = momentum;
      expect_refused("momentum", reduced(sparse, with_momentum));
    }
    expect_refused("needs a residual", reduced(sparse, {.velocities = {velocity.data()}}));
    expect_refused("not for int8", reduced({CodecKind::int8, 0}, both));
    expect_refused("2 residuals for 1 tensors",
                   reduced(sparse, {.residuals = {residual.data(), residual.data()}}));
    reduced(sparse, both).wait();
    reduced(sparse, {.residuals = {nullptr}, .velocities = {nullptr}, .momentum = 5}).wait();
  });
}

TEST_CASE("a persistent operation looks at the shape before it makes room for it") {
  with_world(2, "persistent", [](int, ProcessSet set) {
    Values values{};
    const auto agree = [&](const Shape& shape) {
      const PersistentAgreement agreement(
          runtime_of(set).runtime, {values.data(), shape, DataType::float32}, values.data(), {});
      agreement.handle().wait();
    };
    expect_refused("negative extent", [&] { agree({-1}); });
    expect_refused("more than can be addressed", [&] { agree({1LL << 40, 1LL << 40}); });
    agree({count});
  });
}

TEST_CASE("a handle of no operation says so, and a result outlives the handle that had it") {
  static_assert(std::is_same_v<decltype(std::declval<Handle>().output()), Output>);
  static_assert(std::is_same_v<decltype(std::declval<const Handle&>().output()), const Output&>);
  const Handle none;
  CHECK_FALSE(none.valid());
  const std::array<std::function<void()>, 6> uses{[&] { (void)none.done(); },
                                                  [&] { none.wait(); },
                                                  [&] { (void)none.output(); },
                                                  [&] { none.wait_on(nullptr); },
                                                  [&] { none.release_output(nullptr); },
                                                  [&] { CompletionQueue().watch(none, 1); }};
  for (const auto& use : uses) CHECK_THROWS_AS(use(), InvalidArgumentError);
  CHECK_THROWS_AS(none.wait_for(std::chrono::seconds(0)), InvalidArgumentError);
  const ProcessSet set = open_world({});
  Values values{1, 2, 3, 4};
  const Output& gathered = allgather(view_of(values), {.process_set = set}).output();
  CHECK(gathered.shape == Shape{count});
  close_world(set);
}

}  // namespace rueda::test::arguments_test
