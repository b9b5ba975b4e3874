// Codecs on every instruction set of this CPU: error bounds, sizes, and identical bytes.
#include "reduce/codec.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "reduce/instruction_set.h"
#include "reduce/kernels/block_format.h"

namespace rueda::test::codec_test {
namespace {

using Values = std::vector<float>;
using Bytes = std::vector<std::byte>;

const std::vector<Compression> all_codecs{{CodecKind::float16, 0},
                                          {CodecKind::bfloat16, 0},
                                          {CodecKind::int8, 0},
                                          {CodecKind::top_k, 0.1},
                                          {CodecKind::random_k, 0.1}};

CodecRun run_of(const Values& values, int partials = 1) {
  return {static_cast<std::int64_t>(values.size()), 0, partials, 5, partials > 1};
}

// Checks that the codec writes nothing beyond the room it asked for.
Bytes encoded(const Codec& codec, const Values& values, int partials = 1) {
  constexpr std::byte fence{0xa5};
  const CodecRun run = run_of(values, partials);
  Bytes bytes(codec.max_bytes(run) + 8, fence);
  const std::size_t size = codec.encode(bytes.data(), values.data(), run);
  REQUIRE(size <= codec.max_bytes(run));
  if (codec.has_fixed_size()) REQUIRE(size == codec.max_bytes(run));
  for (std::size_t i = codec.max_bytes(run); i < bytes.size(); ++i) REQUIRE(bytes[i] == fence);
  bytes.resize(size);
  return bytes;
}

Values decoded(const Codec& codec, const Bytes& bytes, std::size_t count, int partials = 1) {
  Values values(count, 1e9F);
  REQUIRE(codec.decode(values.data(), bytes.data(), bytes.size(), run_of(values, partials)) ==
          Decoded::finite);
  return values;
}

Decoded finding(const Codec& codec, const Bytes& bytes, std::size_t count) {
  Values values(count);
  return codec.decode(values.data(), bytes.data(), bytes.size(), run_of(values));
}

Values noise(std::size_t count, float scale, std::mt19937& random) {
  std::student_t_distribution<float> heavy(3);
  Values values(count);
  for (float& value : values) value = scale * heavy(random);
  return values;
}

// The bound that docs/compression.md promises for one encoding.
double error_bound(CodecKind codec, const Values& values, std::size_t i) {
  const std::size_t begin = i / block_elements * block_elements;
  const std::size_t end = std::min(values.size(), begin + block_elements);
  double largest = 0;
  for (std::size_t k = begin; k < end; ++k)
    largest = std::max(largest, std::fabs(double{values[k]}));
  const double value = std::fabs(double{values[i]});
  switch (codec) {
    case CodecKind::float16: return std::max(value * 0x1p-11, 0x1p-25);
    case CodecKind::bfloat16: return std::max(value * 0x1p-8, 0x1p-133);
    case CodecKind::int8: return std::max(largest / 254 * (1 + 0x1p-6), 127 * 0x1p-126);
    default: return value;
  }
}

bool is_same(const Values& left, const Values& right) {
  return left.size() == right.size() &&
         std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("a codec keeps its error bound and its size at every length and scale") {
  const auto compression = GENERATE(from_range(all_codecs));
  const auto scale = GENERATE(1e-36F, 1e-20F, 1e-3F, 1.0F, 1e3F, 1e30F);
  const bool is_half = compression.codec == CodecKind::float16;
  if (is_half && (scale > 1 || scale < 1e-20F)) return;
  std::mt19937 random(7);
  for (const std::size_t count : {0, 1, 2, 7, 31, 127, 128, 129, 255, 256, 1000, 65536}) {
    const Values values = noise(count, scale, random);
    for (const KernelTable* kernels : supported_kernels()) {
      const auto codec = make_codec(compression, *kernels);
      CAPTURE(name_of(compression.codec), scale, count, kernels->name);
      const Values result = decoded(*codec, encoded(*codec, values), count);
      int wrong = 0;
      for (std::size_t i = 0; i < std::min<std::size_t>(count, 2000); ++i) {
        const double error = std::fabs(double{values[i]} - double{result[i]});
        if (!(error <= error_bound(compression.codec, values, i))) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("every instruction set gives the same bytes, and the same sums of them") {
  const auto compression = GENERATE(from_range(all_codecs));
  std::mt19937 random(3);
  for (const std::size_t count : {1, 5, 128, 200, 4099}) {
    Values values = noise(count, 1, random);
    const Values before = noise(count, 1, random);
    if (count > 100) {  // zeros, denormals, equal values
      values[3] = 0;
      values[50] = -0.0F;
      values[70] = 1e-40F;
      std::fill(values.begin() + 80, values.begin() + 90, 0.5F);
    }
    Bytes first;
    Values first_sum;
    for (const KernelTable* kernels : supported_kernels()) {
      const auto codec = make_codec(compression, *kernels);
      CAPTURE(name_of(compression.codec), count, kernels->name);
      const Bytes bytes = encoded(*codec, values);
      Values sum = before;
      REQUIRE(codec->decode_add(sum.data(), bytes.data(), bytes.size(), run_of(sum)) ==
              Decoded::finite);
      const Values alone = decoded(*codec, bytes, count);
      for (std::size_t i = 0; i < count; ++i) REQUIRE(sum[i] == before[i] + alone[i]);
      if (first.empty()) {
        first = bytes;
        first_sum = sum;
      }
      CHECK(bytes == first);
      CHECK(is_same(sum, first_sum));
    }
  }
}

TEST_CASE("a value that is not finite is found wherever it is, and in its run only") {
  const auto compression = GENERATE(from_range(all_codecs));
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
               std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity());
  std::mt19937 random(1);
  for (const KernelTable* kernels : supported_kernels()) {
    const auto codec = make_codec(compression, *kernels);
    for (const std::size_t count : {1, 17, 128, 300}) {
      for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
        Values values = noise(count, 1, random);
        CHECK(finding(*codec, encoded(*codec, values), count) == Decoded::finite);
        values[place] = bad;
        const Bytes bytes = encoded(*codec, values);
        CAPTURE(name_of(compression.codec), kernels->name, count, place);
        CHECK(finding(*codec, bytes, count) == Decoded::not_finite);
        Values sum(count);
        CHECK(codec->decode_add(sum.data(), bytes.data(), bytes.size(), run_of(sum)) ==
              Decoded::not_finite);
        CHECK(finding(*codec, encoded(*codec, sum, 2), count) == Decoded::not_finite);
      }
    }
  }
}

TEST_CASE("int8 blocks of the largest and the smallest numbers come back") {
  for (const KernelTable* kernels : supported_kernels()) {
    const auto codec = make_codec({CodecKind::int8, 0}, *kernels);
    CAPTURE(kernels->name);
    for (const float largest : {FLT_MAX, FLT_MAX / 2, 1e38F, FLT_MIN * 128}) {
      const Values values{largest, -largest, largest / 3, 0};
      const Values result = decoded(*codec, encoded(*codec, values), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(std::fabs(double{values[i]} - double{result[i]}) <= double{largest} * 0x1p-7);
      }
    }
    const Values tiny{FLT_MIN, -FLT_TRUE_MIN, FLT_MIN * 100, 0};
    CHECK(decoded(*codec, encoded(*codec, tiny), 4) == Values(4, 0.0F));
    const Values zeros(300, 0.0F);
    CHECK(decoded(*codec, encoded(*codec, zeros), 300) == zeros);
  }
}

TEST_CASE("an outlier costs its own block its precision, and no other") {
  Values values(256, 0.01F);
  values[5] = 1000;
  const auto codec = make_codec({CodecKind::int8, 0});
  const Values result = decoded(*codec, encoded(*codec, values), values.size());
  CHECK(result[6] == 0);
  CHECK(result[5] == Approx(1000).epsilon(0.01));
  for (std::size_t i = 128; i < 256; ++i) REQUIRE(result[i] == Approx(0.01F).epsilon(0.01));
}

TEST_CASE("int8 takes 8.125 bits, and its error on heavy tails is known") {
  constexpr std::size_t count = 1 << 16;
  std::mt19937 random(11);
  const auto codec = make_codec({CodecKind::int8, 0});
  Values sum(count);
  std::vector<double> exact(count);
  for (int rank = 0; rank < 4; ++rank) {
    const Values values = noise(count, 1, random);
    const Bytes bytes = encoded(*codec, values);
    CHECK(8.0 * static_cast<double>(bytes.size()) / count == 8.125);
    REQUIRE(codec->decode_add(sum.data(), bytes.data(), bytes.size(), run_of(sum)) ==
            Decoded::finite);
    for (std::size_t i = 0; i < count; ++i) exact[i] += double{values[i]};
  }
  const Values result = decoded(*codec, encoded(*codec, sum), count);
  double error = 0;
  double square = 0;
  for (std::size_t i = 0; i < count; ++i) {
    error += (result[i] - exact[i]) * (result[i] - exact[i]);
    square += exact[i] * exact[i];
  }
  CHECK(error / square <= 4e-4);
}

TEST_CASE("top_k sends the largest magnitudes, of equal ones the first") {
  const double fraction = GENERATE(0.001, 0.05, 0.5, 1.0);
  std::mt19937 random(2);
  for (const std::size_t count : {1, 3, 100, 5000, 65536}) {
    Values values = noise(count, 1, random);
    for (std::size_t i = 0; i + 3 < count; i += 7) values[i] = 0.75F * (i % 2 == 0 ? 1 : -1);
    const auto codec = make_codec({CodecKind::top_k, fraction});
    const Values result = decoded(*codec, encoded(*codec, values), count);
    const auto k =
        static_cast<std::size_t>(std::max(1.0, std::ceil(fraction * static_cast<double>(count))));
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
      return std::fabs(values[left]) > std::fabs(values[right]);
    });
    Values expected(count);
    // If positions and values are no smaller than all values, all values are sent.
    if (k * 6 >= count * 4) expected = values;
    for (std::size_t i = 0; i < k; ++i) expected[order[i]] = values[order[i]];
    CAPTURE(fraction, count);
    CHECK(result == expected);
  }
}

TEST_CASE("random_k sends as many elements as it should, others with another seed") {
  const auto codec = make_codec({CodecKind::random_k, 0.1});
  const Values values(1000, 1.0F);
  const auto sent = [&](std::uint64_t seed) {
    const CodecRun run{1000, 0, 1, seed};
    Bytes bytes(codec->max_bytes(run));
    bytes.resize(codec->encode(bytes.data(), values.data(), run));
    return decoded(*codec, bytes, 1000);
  };
  const Values first = sent(1);
  CHECK(std::count(first.begin(), first.end(), 1.0F) == 100);
  CHECK(first == sent(1));
  CHECK(first != sent(2));
  // Each element is sent sooner or later.
  Values ever(1000);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Values some = sent(seed);
    for (std::size_t i = 0; i < some.size(); ++i) ever[i] = std::max(ever[i], some[i]);
  }
  CHECK(std::count(ever.begin(), ever.end(), 0.0F) == 0);
}

TEST_CASE("a sum of sparse contributions comes back as it is, however many elements it has") {
  const double fraction = GENERATE(0.01, 0.2, 0.6, 1.0);
  const auto kind = GENERATE(CodecKind::top_k, CodecKind::random_k);
  const auto codec = make_codec({kind, fraction});
  std::mt19937 random(4);
  Values sum(3000);
  for (int rank = 0; rank < 3; ++rank) {
    const Values values = noise(sum.size(), 1, random);
    const Bytes bytes = encoded(*codec, values);
    REQUIRE(codec->decode_add(sum.data(), bytes.data(), bytes.size(), run_of(sum)) ==
            Decoded::finite);
  }
  CHECK(decoded(*codec, encoded(*codec, sum, 3), sum.size(), 3) == sum);
}

TEST_CASE("what error feedback keeps is what was lost") {
  const auto compression = GENERATE(from_range(all_codecs));
  std::mt19937 random(9);
  const auto codec = make_codec(compression);
  const Values values = noise(500, 1, random);
  const Values sent = decoded(*codec, encoded(*codec, values), 500);
  Values residual(500);
  keep_residual(residual.data(), values.data(), sent.data(), 500);
  Values again(500);
  add_residual(again.data(), sent.data(), residual.data(), 500);
  for (std::size_t i = 0; i < 500; ++i) REQUIRE(again[i] == Approx(values[i]).epsilon(1e-6));
}

TEST_CASE("bytes that no codec has written are refused") {
  const auto compression = GENERATE(from_range(all_codecs));
  const auto codec = make_codec(compression);
  std::mt19937 random(6);
  Values target(200);
  const CodecRun run = run_of(target);
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes(random() % 900);
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    if (bytes.size() >= 4 && round % 2 == 0) {  // few elements, so that positions are checked
      const std::uint32_t head = random() % 8;
      std::memcpy(bytes.data(), &head, sizeof(head));
      bytes.resize(4 + head * 6);
    }
    const Decoded found = codec->decode(target.data(), bytes.data(), bytes.size(), run);
    const bool is_of_its_size = codec->has_fixed_size() && bytes.size() == codec->max_bytes(run);
    if (codec->has_fixed_size() && !is_of_its_size) CHECK(found == Decoded::malformed);
  }
}

}  // namespace rueda::test::codec_test
