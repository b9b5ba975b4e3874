// Compressed allreduces by one engine per thread, over the transport and on one host.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <vector>

#include "effort.h"
#include "ranks/engine_ranks.h"

namespace rueda::test::compressed_allreduce_test {
namespace {

using Values = std::vector<float>;

const Options plain_options = [] { return Options(); }();

Values input_of(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::student_t_distribution<float> heavy(3);
  Values values(count);
  const std::size_t drawn = std::min(count, max_drawn);
  std::generate_n(values.begin(), drawn, [&] { return heavy(random); });
  for (std::size_t i = drawn; i < count; ++i) values[i] = values[i - drawn];
  return values;
}

Submission compressed(Values& data, Compression compression, const std::string& name = "gradient",
                      ReduceOp op = ReduceOp::sum) {
  Submission submission = allreduce_of(data, DataType::float32, name, op);
  submission.request.compression = compression;
  submission.kept.seed = 3;
  return submission;
}

bool is_same(const Values& left, const Values& right) {
  return left.size() == right.size() &&
         (left.empty() || std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0);
}

// The results of all ranks.
class Results {
 public:
  explicit Results(int size) : values_(static_cast<std::size_t>(size)) {}
  void put(int rank, Values values) { values_[static_cast<std::size_t>(rank)] = std::move(values); }
  [[nodiscard]] const Values& agreed() const {
    for (const Values& each : values_) REQUIRE(is_same(each, values_.front()));
    return values_.front();
  }

 private:
  std::vector<Values> values_;
};

// Relative to the exact sum of all ranks' inputs.
double relative_error(const Values& result, int size, double factor = 1) {
  std::vector<double> exact(result.size());
  for (int rank = 0; rank < size; ++rank) {
    const Values input = input_of(rank, result.size());
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += double{input[i]} * factor;
  }
  double error = 0;
  double square = 1e-30;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (double{result[i]} - exact[i]) * (double{result[i]} - exact[i]);
    square += exact[i] * exact[i];
  }
  return error / square;
}

double expected_error(CodecKind codec) {
  switch (codec) {
    case CodecKind::float16: return 1e-6;
    case CodecKind::bfloat16: return 2e-5;
    case CodecKind::int8: return 1e-3;
    default: return 1;
  }
}

const std::vector<Compression> all_codecs{{CodecKind::float16, 0},
                                          {CodecKind::bfloat16, 0},
                                          {CodecKind::int8, 0},
                                          {CodecKind::top_k, 0.05},
                                          {CodecKind::random_k, 0.05}};

}  // namespace

TEST_CASE("all ranks end with the same bits, near to the sum, at every size") {
  const int size = GENERATE(from_range(efforts({1, 2, 3, 4, 5}, {1, 3})));
  const auto compression = GENERATE(from_range(all_codecs));
  for (const std::size_t count : {0, 1, 2, 5, 127, 1000, effort(40'001, 9'001)}) {
    Results results(size);
    run_engines(size, plain_options, [&](int rank, Runtime& engine) {
      Values data = input_of(rank, count);
      finish(submit(engine, compressed(data, compression)));
      results.put(rank, std::move(data));
    });
    CAPTURE(size, name_of(compression.codec), count);
    CHECK(relative_error(results.agreed(), size) <= expected_error(compression.codec));
  }
}

TEST_CASE("a tensor of many chunks is divided into them, over a transport and within a host") {
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  // At least one dense and one sparse codec.
  const auto compression =
      GENERATE(from_range(effort(all_codecs, {{CodecKind::int8, 0}, {CodecKind::top_k, 0.05}})));
  constexpr std::size_t count = effort(1'500'003, 225'003);
  Options options;
  options.ring_chunk /= effort(1, 4);
  constexpr int size = 3;
  Results results(size);
  run_engines(
      size, options,
      [&](int rank, Runtime& engine) {
        Values data = input_of(rank, count);
        finish(submit(engine, compressed(data, compression)));
        results.put(rank, std::move(data));
        if (compression.codec != CodecKind::int8) return;
        // 8.125 bits per element and direction, plus 2 bytes for each partial block.
        const double elements = 2.0 * (size - 1) / size * count;
        const auto sent = static_cast<double>(metric(engine, "allreduce_payload_bytes_sent"));
        expect(sent * 8 / elements < 8.126 && sent * 8 / elements > 8.12, "8.125 bits");
      },
      nullptr, sharing);
  CHECK(relative_error(results.agreed(), size) <= expected_error(compression.codec));
}

TEST_CASE("averages and factors come before the result is encoded") {
  constexpr int size = 3;
  Results results(size);
  run_engines(size, plain_options, [&](int rank, Runtime& engine) {
    Values data = input_of(rank, 1000);
    Submission submission = compressed(data, {CodecKind::int8, 0}, "gradient", ReduceOp::average);
    submission.request.prescale = 0.5;
    submission.request.postscale = 8;
    finish(submit(engine, std::move(submission)));
    results.put(rank, std::move(data));
  });
  CHECK(relative_error(results.agreed(), size, 4.0 / size) <= 1e-3);
}

TEST_CASE("tensors of other floating-point types are converted") {
  run_engines(2, plain_options, [&](int rank, Runtime& engine) {
    std::vector<double> wide{1.0, -2.0, 1e-3 * rank};
    Submission submission = allreduce_of(wide, DataType::float64, "wide");
    submission.request.compression = {CodecKind::int8, 0};
    finish(submit(engine, std::move(submission)));
    expect(std::fabs(wide[0] - 2) < 0.05 && std::fabs(wide[1] + 4) < 0.05, "a sum of doubles");
    std::vector<std::uint16_t> half{0x3c00, 0xc000};  // 1 and -2
    submission = allreduce_of(half, DataType::float16, "half");
    submission.request.compression = {CodecKind::int8, 0};
    finish(submit(engine, std::move(submission)));
    expect(half[0] >= 0x3ff0 && half[0] <= 0x4010 && half[1] == 0xc400, "a sum of halves");
  });
}

// Tensor i has i * i elements.
std::vector<Values> reduce_many(Runtime& engine, int rank, int tensors, Compression compression,
                                bool together) {
  std::vector<Values> data;
  for (int i = 0; i < tensors; ++i) {
    data.push_back(input_of(rank, static_cast<std::size_t>(i * i)));
  }
  std::vector<Submission> submissions;
  for (int i = 0; i < tensors; ++i) {
    Submission submission = compressed(data[static_cast<std::size_t>(i)], compression,
                                       (together ? "group." : "alone.") + std::to_string(i));
    if (!together) {
      finish(submit(engine, std::move(submission)));
      continue;
    }
    submission.request.group = "group";
    submission.request.group_size = tensors;
    submissions.push_back(std::move(submission));
  }
  if (!together) return data;
  for (const Handle& handle : engine.submit(0, std::move(submissions))) finish(handle);
  return data;
}

TEST_CASE("what becomes of a tensor does not depend on which others are in its batch") {
  constexpr int size = 3;
  constexpr int tensors = 40;
  const auto compression = GENERATE(from_range(all_codecs));
  std::vector<Results> results(tensors, Results(size));
  run_engines(size, plain_options, [&](int rank, Runtime& engine) {
    const auto alone = reduce_many(engine, rank, tensors, compression, false);
    const auto batches = metric(engine, "allreduce_batches");
    auto together = reduce_many(engine, rank, tensors, compression, true);
    expect(metric(engine, "allreduce_batches") == batches + 1, "one batch");
    for (std::size_t i = 0; i < tensors; ++i) {
      expect(is_same(alone[i], together[i]), "the same alone, of " + std::to_string(i));
      results[i].put(rank, std::move(together[i]));
    }
  });
  for (const Results& each : results) {
    CHECK(relative_error(each.agreed(), size) <= expected_error(compression.codec));
  }
}

TEST_CASE("what repeats is replayed, with the same result") {
  const auto sharing = GENERATE(Sharing::nothing, Sharing::memory);
  run_engines(
      2, plain_options,
      [&](int rank, Runtime& engine) {
        Values first;
        for (int round = 0; round < 20; ++round) {
          Values data = input_of(rank, 3000);
          finish(run(engine, compressed(data, {CodecKind::int8, 0})));
          if (round == 0) first = data;
          expect(is_same(first, data), "the same bits each time");
        }
      },
      nullptr, sharing);
}

TEST_CASE("a tensor with a NaN fails on every rank under its name, and nothing else does") {
  const auto compression = GENERATE(from_range(all_codecs));
  constexpr int size = 3;
  run_engines(size, plain_options, [&](int rank, Runtime& engine) {
    Values good = input_of(rank, 1000);
    Values bad = input_of(rank, 1000);
    if (rank == 1) bad[617] = std::numeric_limits<float>::quiet_NaN();
    std::vector<Submission> submissions;
    submissions.push_back(compressed(good, compression, "good"));
    submissions.push_back(compressed(bad, compression, "bad"));
    for (Submission& each : submissions) {
      each.request.group = "group";
      each.request.group_size = 2;
    }
    const std::vector<Handle> handles = engine.submit(0, std::move(submissions));
    finish(handles[0]);
    const std::string text = error_of<InvalidArgumentError>(handles[1]);
    expect(text.find("'bad'") != std::string::npos, "the name in: " + text);
    expect(text.find("NaN") != std::string::npos, "the reason in: " + text);
    Values next = input_of(rank, 10);
    finish(submit(engine, compressed(next, compression, "next")));
  });
}

TEST_CASE("a sum that no float16 holds is an error, too") {
  run_engines(2, plain_options, [&](int, Runtime& engine) {
    Values data(10, 50'000.0F);
    (void)error_of<InvalidArgumentError>(submit(engine, compressed(data, {CodecKind::float16, 0})));
  });
}

TEST_CASE("a number that no float16 holds is an error, whosever segment it is in") {
  const std::size_t place = GENERATE(3, 997);
  const float number = GENERATE(70'000.0F, -1e38F);
  run_engines(2, plain_options, [&](int rank, Runtime& engine) {
    Values data(1000, 1.0F);
    if (rank == 0) data[place] = number;
    Submission average = compressed(data, {CodecKind::float16, 0});
    average.request.op = ReduceOp::average;
    const std::string text = error_of<InvalidArgumentError>(submit(engine, std::move(average)));
    expect(text.find("on rank 0") != std::string::npos, "the rank in: " + text);
  });
}

TEST_CASE("ranks that differ in their compression are told so") {
  run_engines(2, plain_options, [&](int rank, Runtime& engine) {
    Values data(10, 1.0F);
    const Compression mine =
        rank == 0 ? Compression{CodecKind::int8, 0} : Compression{CodecKind::top_k, 0.25};
    const std::string text = error_of<MismatchError>(submit(engine, compressed(data, mine)));
    expect(text.find("compression") != std::string::npos, text);
    expect(text.find("top_k of 0.25") != std::string::npos, text);
  });
}

TEST_CASE("what cannot be compressed is refused on every rank") {
  run_engines(2, plain_options, [&](int, Runtime& engine) {
    Values data(10, 1.0F);
    const auto refused = [&](const char* why, auto change) {
      Submission submission = compressed(data, {CodecKind::int8, 0}, why);
      change(submission.request);
      const std::string text = error_of<Error>(submit(engine, std::move(submission)));
      expect(text.find(why) != std::string::npos, text);
    };
    refused("not max", [](Request& request) { request.op = ReduceOp::max; });
    refused("int32 cannot", [](Request& request) { request.dtype = DataType::int32; });
    refused("exclude each other", [](Request& request) { request.wire = DataType::float16; });
    refused("does not apply", [](Request& request) { request.compression.fraction = 0.5; });
    refused("must be above 0",
            [](Request& request) { request.compression = {CodecKind::top_k, 0}; });
  });
}

TEST_CASE("a rank that has joined contributes nothing to a compressed average") {
  const auto compression = GENERATE(from_range(all_codecs));
  run_engines(3, plain_options, [&](int rank, Runtime& engine) {
    if (rank == 2) return finish(engine.join(0));
    Values data(2000, 2.0F);
    finish(submit(engine, compressed(data, compression, "gradient", ReduceOp::average)));
    const auto near_two = [](float value) { return std::fabs(value - 2) < 0.04F; };
    const auto sent = std::count_if(data.begin(), data.end(), near_two);
    const bool is_dense = !is_sparse(compression.codec);
    expect(is_dense ? sent == 2000 : sent >= 100, "an average of two ranks");
    finish(engine.join(0));
  });
}

TEST_CASE("of a single contribution to a sparse sum nothing more is lost") {
  const auto kind = GENERATE(CodecKind::top_k, CodecKind::random_k);
  run_engines(3, plain_options, [&](int rank, Runtime& engine) {
    if (rank != 1) return finish(engine.join(0));
    Values data(3000);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i + 1);
    const Values given = data;
    finish(submit(engine, compressed(data, {kind, 0.1})));
    for (std::size_t first = 0; first < data.size(); first += 1000) {  // a rank's segment
      const auto begin = data.begin() + static_cast<std::ptrdiff_t>(first);
      const auto arrived = std::count_if(begin, begin + 1000, [](float it) { return it != 0; });
      expect(arrived == 100, "as many as the codec sends");
    }
    for (std::size_t i = 0; i < data.size(); ++i) {
      expect(data[i] == 0 || data[i] == given[i], "the value that was contributed");
    }
    finish(engine.join(0));
  });
}

TEST_CASE("with error feedback everything arrives in the end") {
  const auto compression = GENERATE(from_range(all_codecs));
  constexpr int size = 3;
  constexpr std::size_t count = 400;
  constexpr int rounds = effort(200, 120);
  run_engines(size, plain_options, [&](int rank, Runtime& engine) {
    const Values input = input_of(rank, count);
    Values residual(count);
    std::vector<double> received(count);
    for (int round = 0; round < rounds; ++round) {
      Values data = input;
      Submission submission = compressed(data, compression);
      submission.kept.residual = residual.data();
      submission.kept.seed = static_cast<std::uint64_t>(round);
      finish(submit(engine, std::move(submission)));
      for (std::size_t i = 0; i < count; ++i) received[i] += double{data[i]};
    }
    std::vector<double> exact(count);
    for (int other = 0; other < size; ++other) {
      const Values theirs = input_of(other, count);
      for (std::size_t i = 0; i < count; ++i) exact[i] += double{theirs[i]};
    }
    double error = 0;
    double square = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double mean = received[i] / rounds;
      error += (mean - exact[i]) * (mean - exact[i]);
      square += exact[i] * exact[i];
    }
    expect(error / square < 0.05, "what is missing: " + std::to_string(error / square));
  });
}

}  // namespace rueda::test::compressed_allreduce_test
