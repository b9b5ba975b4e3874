// codec_bench [ELEMENTS...]: the codecs of csrc/reduce (default 65536 elements, which is one chunk,
// and 16777216, which stay in no cache).
//
// GB/s are those of the float32 values, on one core: encoding a contribution, and decoding it into
// a sum. Bits are those of an encoded element. NMSE is the mean squared error over the mean square,
// of one encoding, and of an allreduce of 4 ranks in which each value is encoded on its way to its
// owner and the sum on its way back. Noise is Student's t with 3 degrees of freedom, which has the
// heavy tails of gradients, and normal. RUEDA_INSTRUCTION_SET lowers what is used.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "reduce/codec.h"
#include "reduce/combine.h"

namespace rueda {
namespace {

using Values = std::vector<float>;
constexpr int ranks = 4;

template <class Distribution>
Values noise(std::int64_t count, Distribution distribution, unsigned seed) {
  std::mt19937 random(seed);
  Values values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(distribution(random));
  return values;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Work>
double seconds(const Work& work) {
  std::vector<double> times;
  for (int round = 0; round < 9; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    times.push_back(time.count());
  }
  return median(times);
}

// Calls visit(first element, run) for each run of max_run elements.
template <class Visit>
void for_each_run(std::int64_t count, int partials, const Visit& visit) {
  for (std::int64_t at = 0; at < count; at += max_run) {
    visit(at, CodecRun{std::min(max_run, count - at), at, partials, 1});
  }
}

struct Encoded {
  std::vector<std::byte> bytes;  // room for each run
  std::vector<std::size_t> offsets;
  std::vector<std::size_t> sizes;

  [[nodiscard]] std::size_t size() const {
    std::size_t all = 0;
    for (const std::size_t each : sizes) all += each;
    return all;
  }
};

Encoded make_room(const Codec& codec, std::int64_t count, int partials) {
  Encoded encoded;
  std::size_t room = 0;
  for_each_run(count, partials, [&](std::int64_t, const CodecRun& run) {
    encoded.offsets.push_back(room);
    encoded.sizes.push_back(0);
    room += codec.max_bytes(run);
  });
  encoded.bytes.resize(room);
  return encoded;
}

void encode(const Codec& codec, const Values& values, int partials, Encoded& encoded) {
  std::size_t number = 0;
  for_each_run(static_cast<std::int64_t>(values.size()), partials,
               [&](std::int64_t at, const CodecRun& run) {
                 std::byte* const to = encoded.bytes.data() + encoded.offsets[number];
                 encoded.sizes[number++] = codec.encode(to, values.data() + at, run);
               });
}

void add(const Codec& codec, const Encoded& encoded, int partials, Values& sum) {
  std::size_t number = 0;
  for_each_run(
      static_cast<std::int64_t>(sum.size()), partials, [&](std::int64_t at, const CodecRun& run) {
        const std::byte* const from = encoded.bytes.data() + encoded.offsets[number];
        const Decoded found = codec.decode_add(sum.data() + at, from, encoded.sizes[number++], run);
        if (found != Decoded::finite) std::abort();
      });
}

double relative_error(const Values& values, std::span<const double> exact) {
  double error = 0;
  double square = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += (values[i] - exact[i]) * (values[i] - exact[i]);
    square += exact[i] * exact[i];
  }
  return error / square;
}

struct Errors {
  double once;
  double allreduce;
};

// The owner of a quarter takes its own contribution as it is, unless the codec has to see it.
Errors errors_of(const Codec& codec, std::span<const Values> inputs) {
  const auto count = static_cast<std::int64_t>(inputs.front().size());
  const std::vector<double> first(inputs.front().begin(), inputs.front().end());
  std::vector<double> exact(first.size());
  Values sum(first.size());
  Errors errors{};
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    Encoded encoded = make_room(codec, count, 1);
    encode(codec, inputs[rank], 1, encoded);
    Values decoded(first.size());
    add(codec, encoded, 1, decoded);
    if (rank == 0) errors.once = relative_error(decoded, first);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const bool is_owner = i * inputs.size() / first.size() == rank;
      sum[i] += is_owner && !codec.encodes_own() ? inputs[rank][i] : decoded[i];
      exact[i] += inputs[rank][i];
    }
  }
  Encoded result = make_room(codec, count, ranks);
  encode(codec, sum, ranks, result);
  Values decoded(first.size());
  add(codec, result, ranks, decoded);
  errors.allreduce = relative_error(decoded, exact);
  return errors;
}

void measure(const Compression& compression, const std::string& kind,
             std::span<const Values> inputs) {
  const auto codec = make_codec(compression);
  const auto count = static_cast<std::int64_t>(inputs.front().size());
  Encoded encoded = make_room(*codec, count, 1);
  Values sum(inputs.front().size());
  const int repeats = static_cast<int>(std::max<std::int64_t>(1, (1 << 22) / count));
  const double encoding = seconds([&] {
    for (int i = 0; i < repeats; ++i) encode(*codec, inputs.front(), 1, encoded);
  });
  const double decoding = seconds([&] {
    for (int i = 0; i < repeats; ++i) add(*codec, encoded, 1, sum);
  });
  const Errors errors = errors_of(*codec, inputs);
  const double bytes = static_cast<double>(count) * sizeof(float) * repeats;
  const double bits = 8.0 * static_cast<double>(encoded.size()) / static_cast<double>(count);
  std::string name(name_of(compression.codec));
  if (is_sparse(compression.codec)) name += " " + std::to_string(compression.fraction).substr(0, 4);
  std::printf("%-13s %-7s %10lld %8.2f %8.2f %8.3f %10.2e %10.2e\n", name.c_str(), kind.c_str(),
              static_cast<long long>(count), bytes / encoding / 1e9, bytes / decoding / 1e9, bits,
              errors.once, errors.allreduce);
  std::fflush(stdout);
}

}  // namespace
}  // namespace rueda

int main(int count, char** arguments) {
  using namespace rueda;
  std::vector<std::int64_t> sizes;
  for (const char* argument : std::span(arguments, static_cast<std::size_t>(count)).subspan(1)) {
    sizes.push_back(std::strtoll(argument, nullptr, 10));
    if (sizes.back() <= 0) {
      std::fprintf(stderr, "usage: codec_bench [ELEMENTS...]\n");
      return 2;
    }
  }
  if (sizes.empty()) sizes = {1 << 16, 1 << 24};
  std::printf("kernels: %s\n", std::string(instruction_set()).c_str());
  std::printf("%-13s %-7s %10s %8s %8s %8s %10s %10s\n", "codec", "noise", "elements", "encode",
              "add", "bits", "NMSE", "of 4 ranks");
  for (const std::int64_t size : sizes) {
    std::vector<Values> heavy;
    std::vector<Values> normal;
    for (unsigned rank = 0; rank < ranks; ++rank) {
      heavy.push_back(noise(size, std::student_t_distribution<double>(3), rank));
      normal.push_back(noise(size, std::normal_distribution<double>(), rank));
    }
    for (const Compression& each : {Compression{CodecKind::float16},
                                    {CodecKind::bfloat16},
                                    {CodecKind::int8},
                                    {CodecKind::top_k, 0.01},
                                    {CodecKind::random_k, 0.01}}) {
      measure(each, "t3", heavy);
      measure(each, "normal", normal);
    }
  }
  return 0;
}
