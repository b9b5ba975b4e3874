// Compressed allreduces across simulated hosts: values are summed uncompressed within a host and
// encoded only between hosts.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "effort.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::several_hosts_compression_test {

namespace {

using Values = std::vector<float>;
using Hosts = std::vector<int>;  // by rank

const Hosts two_by_two{0, 0, 1, 1};

// Adjacent, interleaved, uneven, and three hosts.
Hosts some_hosts() {
  return GENERATE(
      from_range(efforts<Hosts>({{0, 0, 1, 1}, {0, 1, 0, 1}, {1, 0, 0, 0}, {0, 0, 1, 1, 2}},
                                {{0, 1, 0, 1}, {0, 0, 1, 1, 2}})));
}

int size_of(const Hosts& hosts) {
  return static_cast<int>(hosts.size());
}

void run_on(const Hosts& hosts, const std::function<void(int, Runtime&)>& body) {
  Options options;
  options.ring_chunk /= effort(1, 2);  // about as many chunks with fewer elements; parts stay 1 MiB
  run_engines(size_of(hosts), options, body, nullptr, Sharing::memory, hosts);
}

Compression some_codec() {
  return GENERATE(from_range(efforts<Compression>(
      {{CodecKind::float16, 0},
       {CodecKind::bfloat16, 0},
       {CodecKind::int8, 0},
       {CodecKind::top_k, 0.05},
       {CodecKind::random_k, 0.05}},
      {{CodecKind::float16, 0}, {CodecKind::int8, 0}, {CodecKind::top_k, 0.05}})));
}

Values input_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::student_t_distribution<float> heavy(3);
  Values values(count);
  const std::size_t drawn = std::min(count, max_drawn);
  std::generate_n(values.begin(), drawn, [&] { return heavy(random); });
  for (std::size_t i = drawn; i < count; ++i) values[i] = values[i - drawn];
  return values;
}

std::vector<double> exact_sum(int size, std::size_t count) {
  std::vector<double> exact(count);
  for (int rank = 0; rank < size; ++rank) {
    const Values input = input_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) exact[i] += double{input[i]};
  }
  return exact;
}

// Mean squared error divided by the mean square.
double relative_error(const Values& result, const std::vector<double>& exact, double factor = 1) {
  double error = 0;
  double square = 1e-30;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double wanted = exact[i] * factor;
    error += (double{result[i]} - wanted) * (double{result[i]} - wanted);
    square += wanted * wanted;
  }
  return error / square;
}

double bound_of(CodecKind codec) {
  switch (codec) {
    case CodecKind::float16: return 1e-6;
    case CodecKind::bfloat16: return 1e-4;
    case CodecKind::int8: return 1e-3;
    default: return 1;
  }
}

bool is_same(const Values& left, const Values& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0);
}

Submission compressed(Values& data, Compression compression, const std::string& name = "gradient",
                      ReduceOp op = ReduceOp::sum) {
  Submission submission = allreduce_of(data, DataType::float32, name, op);
  submission.request.compression = compression;
  submission.kept.seed = 3;
  return submission;
}

std::vector<Handle> submit_group(Runtime& engine, std::vector<Submission> submissions) {
  const auto size = static_cast<std::int32_t>(submissions.size());
  for (Submission& each : submissions) {
    each.request.group = "group";
    each.request.group_size = size;
  }
  return engine.submit(0, std::move(submissions));
}

}  // namespace

TEST_CASE("all ranks of all hosts end with the same bits, near to the sum") {
  const Hosts hosts = some_hosts();
  const Compression compression = some_codec();
  for (const std::size_t count : {0, 1, 3, 1000, effort(700'003, 300'003)}) {
    std::vector<Values> results(hosts.size());
    run_on(hosts, [&](int rank, Runtime& engine) {
      Values data = input_of(rank, count);
      finish(submit(engine, compressed(data, compression)));
      results[static_cast<std::size_t>(rank)] = std::move(data);
    });
    CAPTURE(hosts, name_of(compression.codec), count);
    for (const Values& each : results) REQUIRE(is_same(each, results.front()));
    CHECK(relative_error(results.front(), exact_sum(size_of(hosts), count)) <=
          bound_of(compression.codec));
  }
}

TEST_CASE("each host sends its encoded sum once in each direction") {
  constexpr std::size_t count = effort(1 << 20, 1 << 18);
  const auto [codec, bytes] =
      GENERATE(table<CodecKind, double>({{CodecKind::float16, 2}, {CodecKind::int8, 8.125 / 8}}));
  run_on(two_by_two, [&, codec = codec, bytes = bytes](int rank, Runtime& engine) {
    Values data = input_of(rank, count);
    finish(submit(engine, compressed(data, {codec, 0})));
    // H hosts send 2(H-1)/H of the elements each; each of a host's two ranks sends half of that.
    const auto sent = static_cast<double>(metric(engine, "allreduce_payload_bytes_sent"));
    const double bound = bytes * count / 2;
    expect(sent >= bound && sent <= bound * 1.001, "bytes sent: " + std::to_string(sent));
  });
}

TEST_CASE("each value is rounded once in each direction, as the sum over its host") {
  run_on(two_by_two, [&](int rank, Runtime& engine) {
    // The ranks of each host hold 1 and 2^-12; their sum needs more than float16's 11 bits.
    Values data(1000, rank % 2 == 0 ? 1.0F : 0x1p-12F);
    finish(submit(engine, compressed(data, {CodecKind::float16, 0})));
    // The owner adds its own part unrounded: 2 + 2^-12 is rounded only at the end.
    expect(std::all_of(data.begin(), data.end(), [](float value) { return value == 2.0F; }), "2");
    Values small(1000, 0x1p-11F * (rank % 2 == 0 ? 0.5F : 0.75F));
    finish(submit(engine, compressed(small, {CodecKind::float16, 0})));
    expect(small.front() == 0x1p-11F * 2.5F, "added up before it is rounded");
  });
}

TEST_CASE("what becomes of a tensor of several hosts does not depend on its batch") {
  constexpr std::size_t tensors = 30;
  const Hosts hosts = some_hosts();
  const Compression compression = some_codec();
  const auto inputs = [](int rank) {
    std::vector<Values> data;
    // Tensor 7 is split into parts of its own.
    for (std::size_t i = 0; i < tensors; ++i) {
      data.push_back(input_of(rank, i == 7 ? effort(800'001U, 600'001U) : i * i * i));
    }
    return data;
  };
  run_on(hosts, [&](int rank, Runtime& engine) {
    const std::vector<Values> data = inputs(rank);
    std::vector<Values> alone = data;
    for (std::size_t i = 0; i < tensors; ++i) {
      finish(submit(engine, compressed(alone[i], compression, "alone." + std::to_string(i))));
    }
    const auto batches = metric(engine, "allreduce_batches");
    std::vector<Values> together = data;
    std::vector<Submission> submissions;
    for (std::size_t i = 0; i < tensors; ++i) {
      submissions.push_back(compressed(together[i], compression, "group." + std::to_string(i)));
    }
    for (const Handle& handle : submit_group(engine, std::move(submissions))) finish(handle);
    expect(metric(engine, "allreduce_batches") == batches + 1, "one batch");
    for (std::size_t i = 0; i < tensors; ++i) {
      expect(is_same(alone[i], together[i]), "the same alone, of " + std::to_string(i));
    }
  });
}

TEST_CASE("inputs that are not outputs stay as they are") {
  run_on(two_by_two, [&](int rank, Runtime& engine) {
    const Values input = input_of(rank, effort(300'000, 75'000));
    Values output(input.size());
    Submission submission = compressed(output, {CodecKind::int8, 0});
    submission.input = reinterpret_cast<const std::byte*>(input.data());
    finish(submit(engine, std::move(submission)));
    expect(is_same(input, input_of(rank, input.size())), "the input");
    expect(relative_error(output, exact_sum(4, input.size())) <= 1e-3, "the sum");
  });
}

TEST_CASE("averages, factors and other types are those of all ranks of all hosts") {
  const Hosts hosts = some_hosts();
  const int size = size_of(hosts);
  run_on(hosts, [&](int rank, Runtime& engine) {
    Values data = input_of(rank, 5000);
    Submission submission = compressed(data, {CodecKind::int8, 0}, "single", ReduceOp::average);
    submission.request.prescale = 0.5;
    submission.request.postscale = 8;
    finish(submit(engine, std::move(submission)));
    expect(relative_error(data, exact_sum(size, 5000), 4.0 / size) <= 1e-3, "an average");
    std::vector<double> wide(1000, 1.5);
    submission = allreduce_of(wide, DataType::float64, "wide");
    submission.request.compression = {CodecKind::float16, 0};
    finish(submit(engine, std::move(submission)));
    expect(wide == std::vector<double>(1000, 1.5 * size), "a sum of doubles");
  });
}

TEST_CASE("a NaN fails its tensor alone, and every rank of every host is told whose it was") {
  const Hosts hosts = some_hosts();
  const Compression compression = some_codec();
  const auto bad_ranks = GENERATE(std::vector<int>{1}, std::vector<int>{0, 3});
  const std::size_t place = GENERATE(from_range(efforts<std::size_t>({0, 617, 999}, {617})));
  run_on(hosts, [&](int rank, Runtime& engine) {
    Values good = input_of(rank, 1000);
    Values bad = input_of(rank, 1000);
    Values single = input_of(rank, 1000);
    if (std::find(bad_ranks.begin(), bad_ranks.end(), rank) != bad_ranks.end()) {
      bad[place] = single[place] = std::numeric_limits<float>::quiet_NaN();
    }
    const std::string ranks = bad_ranks.size() == 1 ? " on rank 1" : " on ranks 0 and 3";
    const auto check = [&](const Handle& handle, const std::string& name) {
      const std::string text = error_of<InvalidArgumentError>(handle);
      expect(text.find(name) != std::string::npos, "the name in: " + text);
      expect(text.ends_with(ranks), ranks + " in: " + text);
    };
    std::vector<Submission> submissions;
    submissions.push_back(compressed(good, compression, "good"));
    submissions.push_back(compressed(bad, compression, "bad"));
    const std::vector<Handle> handles = submit_group(engine, std::move(submissions));
    finish(handles[0]);
    check(handles[1], "'bad'");
    check(submit(engine, compressed(single, compression, "single")), "'single'");
    Values next = input_of(rank, 10);
    finish(submit(engine, compressed(next, compression, "next")));
  });
}

TEST_CASE("a sum across hosts that no float16 holds is no single rank's fault") {
  run_on(two_by_two, [&](int, Runtime& engine) {
    Values data(10, 30'000.0F);
    const std::string text =
        error_of<InvalidArgumentError>(submit(engine, compressed(data, {CodecKind::float16, 0})));
    expect(text.find("in the sum over all ranks") != std::string::npos, text);
  });
}

TEST_CASE("ranks that have joined contribute nothing, also where that is a whole host") {
  const Compression compression = some_codec();
  const int joined = GENERATE(1, 2);
  run_on({0, 1, 1, 0}, [&](int rank, Runtime& engine) {
    if (rank == 1 || (joined == 2 && rank == 2)) return finish(engine.join(0));
    Values data(4000, 2.0F);
    finish(submit(engine, compressed(data, compression, "gradient", ReduceOp::average)));
    const auto sent = std::count_if(data.begin(), data.end(),
                                    [](float value) { return std::fabs(value - 2) < 0.04F; });
    expect(is_sparse(compression.codec) ? sent >= 50 : sent == 4000, "the average of the others");
    finish(engine.join(0));
  });
}

TEST_CASE("what a codec loses in both directions is what the ranks' residuals hold together") {
  const Hosts hosts = GENERATE(from_range(
      efforts<Hosts>({{0, 0, 1, 1}, {0, 1, 1}, {0, 1, 2}, {0, 0, 0}}, {{0, 1, 1}, {0, 0, 0}})));
  const Compression compression = some_codec();
  const bool is_average = GENERATE(false, true);
  constexpr std::size_t count = 30'000;
  std::vector<Values> residuals(hosts.size(), Values(count));
  std::vector<double> received(count);
  run_on(hosts, [&](int rank, Runtime& engine) {
    for (int round = 0; round < 3; ++round) {
      Values data = input_of(rank, count);
      Submission submission =
          compressed(data, compression, "gradient", is_average ? ReduceOp::average : ReduceOp::sum);
      submission.request.postscale = 2;
      submission.kept.residual = residuals[static_cast<std::size_t>(rank)].data();
      finish(submit(engine, std::move(submission)));
      for (std::size_t i = 0; rank == 0 && i < count; ++i) received[i] += double{data[i]};
    }
  });
  const std::vector<double> exact = exact_sum(size_of(hosts), count);
  const double factor = is_average ? 2.0 / size_of(hosts) : 2.0;
  double largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    double kept = 0;
    for (const Values& each : residuals) kept += double{each[i]};
    largest = std::max(largest, std::fabs(received[i] / factor + kept - 3 * exact[i]));
  }
  CAPTURE(hosts, name_of(compression.codec));
  CHECK(largest < 1e-3);
}

TEST_CASE("momentum is gathered before elements are chosen, and ends where one has travelled") {
  const Hosts hosts = GENERATE(Hosts{0, 0, 1, 1}, Hosts{0, 1, 2});
  const double fraction = GENERATE(0.05, 1.0);
  constexpr std::size_t count = 20'000;
  constexpr double momentum = 0.5;
  std::vector<Values> residuals(hosts.size(), Values(count));
  std::vector<Values> velocities(hosts.size(), Values(count));
  const auto total = [&](const std::vector<Values>& each, std::size_t i) {
    return std::accumulate(each.begin(), each.end(), 0.0,
                           [i](double sum, const Values& values) { return sum + values[i]; });
  };
  const std::vector<double> exact = exact_sum(size_of(hosts), count);
  for (int round = 0; round < 3; ++round) {
    const std::vector<Values> lost = residuals;
    const std::vector<Values> gathered = velocities;
    Values received;
    run_on(hosts, [&](int rank, Runtime& engine) {
      Values data = input_of(rank, count);
      Submission submission = compressed(data, {CodecKind::top_k, fraction});
      const auto own = static_cast<std::size_t>(rank);
      submission.kept.residual = residuals[own].data();
      submission.kept.velocity = velocities[own].data();
      submission.kept.momentum = momentum;
      finish(submit(engine, std::move(submission)));
      if (rank == 0) received = std::move(data);
    });
    double largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double due = total(lost, i) + momentum * total(gathered, i) + exact[i];
      largest = std::max(largest, std::fabs(received[i] + total(residuals, i) - due));
    }
    std::int64_t moving = 0;  // over all hosts
    for (const Values& each : velocities) {
      moving += std::ssize(each) - std::count(each.begin(), each.end(), 0.0F);
    }
    CAPTURE(hosts, fraction, round);
    CHECK(largest < 1e-3);
    const std::int64_t all = std::int64_t{count} * (*std::ranges::max_element(hosts) + 1);
    CHECK(std::fabs(static_cast<double>(moving) / static_cast<double>(all) - (1 - fraction)) <
          0.001);
  }
}

TEST_CASE("a NaN stays in nothing that is kept for the next step") {
  const Hosts hosts = GENERATE(Hosts{0, 0, 1, 1}, Hosts{0, 1, 2});
  const CodecKind codec = GENERATE(CodecKind::top_k, CodecKind::int8);
  constexpr std::size_t bad_rank = 1;
  constexpr std::size_t count = 3'000;
  run_on(hosts, [&](int rank, Runtime& engine) {
    const auto own = static_cast<std::size_t>(rank);
    Values residual(count);
    Values velocity(count);
    const auto step = [&](bool is_bad) {
      Values data = input_of(rank, count);
      for (std::size_t i = 0; is_bad && own == bad_rank && i < count; i += 10) {
        data[i] = std::numeric_limits<float>::quiet_NaN();
      }
      Submission submission = compressed(data, {codec, is_sparse(codec) ? 0.05 : 0});
      submission.kept.residual = residual.data();
      submission.kept.velocity = is_sparse(codec) ? velocity.data() : nullptr;
      submission.kept.momentum = 0.5;
      const Handle handle = submit(engine, std::move(submission));
      if (!is_bad) return finish(handle);
      (void)error_of<InvalidArgumentError>(handle);
    };
    step(false);
    const Values lost = residual;
    const Values gathered = velocity;
    step(true);
    if (hosts[own] == hosts[bad_rank]) {
      expect(is_same(residual, lost), "the residual is as it was");
      expect(is_same(velocity, gathered), "the velocity is as it was");
    } else if (!is_sparse(codec)) {
      std::size_t wiped = 0;
      for (std::size_t i = 0; i < count; ++i) wiped += residual[i] == 0 && lost[i] != 0 ? 1 : 0;
      expect(wiped < count / 100, "of its own part of the sum it keeps what it had");
    }
    step(false);
  });
}

}  // namespace rueda::test::several_hosts_compression_test
